"""Arm settings: each arm's method, and the settings that may differ between arms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import SerializeAsAny, ValidationError

from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.own_code import is_import_path, load_own_object, origin_of
from coevo_gym.core.registry import METHODS, suggest
from coevo_gym.core.setting_sections import flatten, overlay_section, overlay_settings
from coevo_gym.core.spend import Caps
from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, MethodSpec, NoSettings
from coevo_gym.methods.plugins import method_files, register_methods
from coevo_gym.runs.config.derived import fill_in_derived
from coevo_gym.runs.config.keys import (
    annotation_of,
    insert_setting,
    parse_none_or_list,
    setting_problems,
    setting_types,
    suggest_key,
)
from coevo_gym.runs.config.run_sections import (
    AnalystSettings,
    ArmSettings,
    EvolverSettings,
    ExplorerSettings,
    rows_permissions,
)
from coevo_gym.runs.config.tree import RunConfig
from coevo_gym.store.approvals import Permission, approve, is_approved
from coevo_gym.trainers.learners import load_learner_class
from coevo_gym.trainers.protocols import LoopConfig
from coevo_gym.trainers.settings import LearnerConfig, LearnerSettings, is_own_learner

SECTIONS = ("curriculum", "learner", "explorer", "analyst", "evolver", "gates", "advisor")
"""Sections in which arms may differ."""
KEYS = ("loop.study_only_steps", "loop.seed_of_order")
"""Settings in other sections in which arms may differ."""
_SAME = {
    "benchmark": "arms are compared on the same tasks",
    "policy": "all arms train copies of one policy",
    "warmup": "all arms start from one warmed-up policy",
    "evaluation": "arms are compared on the same held-out tasks",
    "seed": "arms with the same seed are compared in pairs",
    "rollout": "arms are compared with the same group size and the same envs",
    "loop": "arms are compared with the same budget, spent in the same portions",
}


class ArmError(ConfigError):
    """A problem with an arm's settings.

    Attributes:
        key: the dotted key of the invalid setting.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


class ArmConfig(FrozenModel):
    """The settings of one arm, combined from the run, the arm's method and the arm itself.

    Attributes:
        name: name of the arm.
        method: name of the arm's method.
        settings: method-specific settings.
    """

    name: str
    method: str
    settings: SerializeAsAny[FrozenModel]
    curriculum: CurriculumConfig
    learner: LearnerConfig
    explorer: ExplorerSettings
    analyst: AnalystSettings
    evolver: EvolverSettings
    gates: GatesConfig
    advisor: Caps
    loop: LoopConfig

    @property
    def questions_per_step(self) -> Mapping[str, int]:
        """The maximum number of model queries per learner step for each kind of note."""
        counts: Mapping[str, int] = getattr(self.settings, "questions_per_step", {})
        return counts

    def max_extra_tokens_per_step(self, max_steps: int, observation_tokens: int) -> int:
        """Return the maximum number of tokens that studies sample from the policy per env step."""
        tokens = getattr(self.settings, "max_extra_tokens_per_step", None)
        return 0 if tokens is None else int(tokens(max_steps, observation_tokens))

    @property
    def finds_own_tasks(self) -> bool:
        """Return True if the arm finds ``curriculum.initial_size`` tasks in a round of its own."""
        return bool(getattr(self.settings, "finds_own_tasks", False))

    @property
    def shows_solutions(self) -> bool:
        """Return True if a study shows the analyst the solutions to training tasks."""
        return bool(getattr(self.settings, "shows_solutions", False))


def arm_configs(config: RunConfig) -> dict[str, ArmConfig]:
    """Return the settings of each arm, in order, keyed by name.

    Methods, learners and losses that the user has not approved are not loaded. Their arms get the
    settings of the run and of the arm, but not those of the method, and the learner's settings are
    not checked.

    Raises:
        ConfigError: if a method does not exist or cannot be loaded, or if an arm sets a key that
            it may not set.
    """
    folder = config.plugins.methods
    loads = folder is None or is_approved(Permission(folder))
    if folder is not None:
        (register_methods if loads else method_files)(folder)
    _check_models(config, config.policy.kind)
    arms = {name: _arm_config(config, name, loads) for name in config.arms}
    for arm in arms.values():
        _check_models(arm, config.policy.kind)
        _check_analyst(arm, config.policy.kind)
    return arms


def required_permissions(config: RunConfig) -> list[Permission]:
    """Return the permissions that a run needs: to run Python code, and to send API keys."""
    folder = config.plugins.methods
    base = [] if folder is None else [Permission(folder)]
    own_sinks = filter(is_import_path, config.sinks)
    base += [Permission(origin_of(path)) for path in (*own_code_paths(config), *own_sinks)]
    base += rows_permissions(config.benchmark.rows)
    endpoints = [config.policy.endpoint] if config.policy.kind == "openai" else []
    for arm in arm_configs(config).values():
        if arm.explorer.kind == "model" and arm.explorer.model.kind == "openai":
            endpoints.append(arm.explorer.model.endpoint)
        if arm.questions_per_step and arm.analyst.model.kind == "openai":
            endpoints.append(arm.analyst.model.endpoint)
    keys = (key_permission(endpoint) for endpoint in endpoints)
    return [*dict.fromkeys([*base, *(key for key in keys if key is not None)])]


def own_code_paths(config: RunConfig) -> list[str]:
    """Return the import paths of the user-defined learners and losses in a run's arms."""
    learners = [arm.learner for arm in arm_configs(config).values()]
    values = [str(getattr(one, name, "")) for one in learners for name in ("kind", "loss")]
    return [*dict.fromkeys(value for value in values if is_import_path(value))]


def unapproved_code(config: RunConfig) -> list[str]:
    """Return the folders, files and modules of methods and learners that are not approved yet."""
    folder = config.plugins.methods
    origins = [*([] if folder is None else [folder]), *map(origin_of, own_code_paths(config))]
    return [origin for origin in dict.fromkeys(origins) if not is_approved(Permission(origin))]


def approve_settings(
    config: RunConfig, ask: Callable[[Sequence[Permission]], object] | None = None
) -> None:
    """Approve the permissions that settings from a file or a run need, and store the approval.

    ``ask`` is called first with the permissions that are not approved yet, and raises an error to
    refuse them.
    """
    # Methods are loaded only once they are approved, and may then need further permissions.
    while missing := [one for one in required_permissions(config) if not is_approved(one)]:
        if ask is not None:
            ask(missing)
        approve(*missing, keep=True)


def key_permission(endpoint: EndpointConfig) -> Permission | None:
    """Return the permission to send an endpoint's API key, or None if the variable is not set."""
    name = endpoint.api_key_env
    return Permission(name, endpoint.host) if name and os.environ.get(name, "").strip() else None


def _arm_config(config: RunConfig, name: str, loads: bool) -> ArmConfig:
    arm = config.arm.get(name, ArmSettings())
    method = arm.method or name
    if loads or method in METHODS.names():
        spec = _load_spec(method, f"arm.{name}.method" if arm.method else "arms")
        sets = arm.set
    else:
        spec = MethodSpec(method, NoSettings, _raise_not_loaded)
        sets = {key: value for key, value in arm.set.items() if not key.startswith("method.")}
    kind = str(sets.get("learner.kind", spec.sets.get("learner.kind", config.learner.kind)))
    where = {**dict.fromkeys(spec.sets, f"the method {spec.name!r}")}
    where |= {key: f"arm.{name}.set.{key}" for key in sets}
    learner = _own_learner_settings_class(kind, where.get("learner.kind", "learner.kind"))
    own: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for key, value in {**spec.sets, **sets}.items():
        if not (key.startswith("learner.") and is_own_learner(kind)):
            _check_key(key, where[key], spec)
        if key.startswith("method."):
            inner = key.removeprefix("method.")
            insert_setting(
                own, inner, parse_none_or_list(annotation_of(spec.settings, inner), value)
            )
        else:
            insert_setting(changes, key, value)
    base = {section: getattr(config, section).model_dump() for section in (*SECTIONS, "loop")}
    tree = overlay_settings(ArmConfig, base, changes)
    if learner is not None:
        values = config.learner.model_dump(exclude_unset=True)
        values = overlay_section((learner,), values, changes.get("learner", {}))
        tree["learner"] = _validate_learner(learner, values, where)
    tree = fill_in_derived(tree, config.policy)
    try:
        settings = spec.settings.model_validate(own)
        result = ArmConfig(name=name, method=spec.name, settings=settings, **tree)
    except ValidationError as error:
        raise _to_arm_error(error, name, spec, arm) from None
    _check_loss(result.learner, where)
    return result


def _own_learner_settings_class(kind: str, where: str) -> type[LearnerSettings] | None:
    """Return the class of a user-defined learner's settings, or None if it may not be loaded."""
    if not is_own_learner(kind):
        return None
    if is_import_path(kind) and not is_approved(Permission(origin_of(kind))):
        return None
    try:
        settings_class: type[LearnerSettings] = load_learner_class(kind).settings
    except ConfigError as error:
        raise ArmError(where, str(error)) from error
    return settings_class


def _validate_learner(
    model: type[LearnerSettings], settings: Mapping[str, Any], where: Mapping[str, str]
) -> LearnerSettings:
    """Validate the settings of a user-defined learner; ``where`` has the origin of each key."""
    values: dict[str, Any] = {}
    for key, value in flatten(settings):
        if key not in setting_types(model):
            full = f"learner.{key}"
            raise ArmError(
                where.get(full, full),
                f"the learner {settings['kind']!r} has no setting {key!r}. "
                f"{suggest(key, list(setting_types(model)))}",
            )
        insert_setting(values, key, parse_none_or_list(annotation_of(model, key), value))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = setting_problems(model, error)[0]
        keys = [f"learner.{key}" for key in problem.keys] or ["learner.kind"]
        key = next((key for key in keys if key in where), keys[0])
        raise ArmError(where.get(key, key), problem.message) from None


def _check_loss(learner: LearnerSettings, where: Mapping[str, str]) -> None:
    """Check that a user-defined loss can be loaded, if the user has approved it."""
    path = getattr(learner, "loss", None)
    if not isinstance(path, str) or not is_approved(Permission(origin_of(path))):
        return
    try:
        load_own_object(path)
    except ConfigError as error:
        raise ArmError(where.get("learner.loss", "learner.loss"), str(error)) from error


def _raise_not_loaded(settings: FrozenModel, kit: Kit) -> Method:
    raise ConfigError("The methods in plugins.methods are not loaded.")


def rounds_use_policy(settings: ArmConfig | RunConfig) -> bool:
    """Return True if the policy being trained takes part in evolution rounds.

    It takes part by exploring or by trying tasks.
    """
    explorer, gates = settings.explorer, settings.gates
    explores = explorer.kind == "model" and explorer.model.kind == "policy"
    explores |= explorer.kind == "noisy" and explorer.easy > 0
    solves = gates.has_gate("solve") or gates.accept == "paper"
    return explores or (solves and gates.solve.solver == "policy")


def _check_models(settings: ArmConfig | RunConfig, policy: str) -> None:
    """Reject models that cannot do what the settings require of them."""
    explorer = settings.explorer
    if explorer.kind == "model" and explorer.model.kind == "policy" and policy == "tiny":
        raise ArmError(
            "explorer.model.kind",
            "policy.kind = 'tiny' only scores actions and cannot write text, so it cannot explore. "
            "Choose openai, transformers or vllm, or train a language model.",
        )
    if settings.evolver.overlap and rounds_use_policy(settings):
        raise ArmError(
            "evolver.overlap",
            "a round that runs in parallel with training cannot query the policy being trained, "
            "because its weights change meanwhile. Choose another explorer.model.kind and "
            "gates.solve.solver, or turn evolver.overlap off.",
        )


def _check_analyst(arm: ArmConfig, policy: str) -> None:
    """Check that a policy used as the analyst can write text and is not shown any solutions."""
    if not arm.questions_per_step or arm.analyst.model.kind != "policy":
        return
    if arm.shows_solutions:
        raise ArmError(
            "analyst.model.kind",
            f"the studies of arm {arm.name} would show solutions of training tasks to the policy "
            "being trained. Set analyst.model.kind to 'openai', 'transformers' or 'vllm', or turn "
            "these solutions off in the method's settings.",
        )
    if policy == "tiny":
        raise ArmError(
            "analyst.model.kind",
            f"the studies of arm {arm.name} query the policy being trained, but policy.kind = "
            "'tiny' only scores actions and cannot write text. Set analyst.model.kind to 'openai', "
            "'transformers' or 'vllm', or train a language model.",
        )


def _load_spec(name: str, key: str) -> MethodSpec:
    try:
        spec = METHODS.load(name)
    except ConfigError as error:
        raise ArmError(key, str(error)) from error
    if not isinstance(spec, MethodSpec):
        raise ArmError(
            key, f"{name!r} refers to {spec!r}, which is not a method. Decorate it with @method."
        )
    return spec


def _check_key(key: str, where: str, spec: MethodSpec) -> None:
    """Reject a key that does not exist or whose value must be the same for all arms."""
    section, _, inner = key.partition(".")
    if section == "method":
        if inner not in setting_types(spec.settings):
            known = list(setting_types(spec.settings))
            hint = suggest(inner, known) if known else "It has no settings of its own."
            raise ArmError(where, f"the method {spec.name!r} has no setting {inner!r}. {hint}")
    elif section in _SAME and key not in KEYS:
        allowed = ", ".join([*(f"{name}.*" for name in SECTIONS), "method.*", *KEYS])
        raise ArmError(
            where, f"{key} may not differ between arms: {_SAME[section]}. An arm may set {allowed}."
        )
    elif section not in (*SECTIONS, *_SAME):
        raise ArmError(where, f"{key} is a setting of the whole run, so an arm cannot set it.")
    elif key not in setting_types(RunConfig):
        full = where if where.endswith(key) else key
        raise ArmError(where, f"there is no setting {full!r}. {suggest_key(RunConfig, full)}")


def _to_arm_error(
    error: ValidationError, name: str, spec: MethodSpec, arm: ArmSettings
) -> ArmError:
    """Return the first problem with an arm's settings, including the key that caused it."""
    own = error.title == spec.settings.__name__
    problem = setting_problems(spec.settings if own else ArmConfig, error)[0]
    keys = [f"method.{key}" for key in problem.keys] if own else list(problem.keys)
    for key in keys:
        if key in arm.set:
            where = f"arm.{name}.set.{key}"
            return ArmError(where, f"{arm.set[key]!r}: {problem.message}")
    source = f"the method {spec.name!r}" if keys[:1] and keys[0] in spec.sets else f"arm {name}"
    return ArmError(f"{source}, {keys[0] if keys else 'settings'}", problem.message)
