"""Typed models that define the viewer's JSON API.

All paths below begin with ``/api/``. An export contains the same responses as a server, under the
same paths. Every response is one of these models; unknown numbers are ``null``.

| path | response |
|---|---|
| ``about`` | :class:`~coevo_gym.view.api.About` |
| ``runs`` | :class:`~coevo_gym.view.model.runs.RunList` |
| ``runs/{run}`` | :class:`~coevo_gym.view.model.runs.RunDetail` |
| ``runs/{run}/progress`` | :class:`~coevo_gym.view.model.run_progress.ProgressView` |
| ``runs/{run}/measures`` | :class:`~coevo_gym.view.model.measures.RunMeasures` |
| ``runs/{run}/task-set`` | :class:`~coevo_gym.view.model.measures.TaskSet` |
| ``runs/{run}/arms/{arm}/steps`` | :class:`~coevo_gym.view.model.steps.StepTable` |
| ``runs/{run}/arms/{arm}/notes`` | :class:`~coevo_gym.view.model.notes.ArmNotes` |
| ``runs/{run}/arms/{arm}/groups`` | :class:`~coevo_gym.view.model.steps.GroupPage` |
| ``runs/{run}/arms/{arm}/groups/{group}`` | :class:`~coevo_gym.view.model.steps.GroupDetail` |
| ``runs/{run}/arms/{arm}/rounds`` | :class:`~coevo_gym.view.model.rounds.RoundList` |
| ``runs/{run}/arms/{arm}/rounds/{round}`` | :class:`~coevo_gym.view.model.rounds.RoundDetail` |
| ``runs/{run}/trajectories`` | :class:`~coevo_gym.view.model.trajectory_list.TrajectoryPage` |
| ``runs/{run}/trajectories/{id}`` | :class:`~coevo_gym.view.model.trajectories.TrajectoryDetail` |
| ``runs/{run}/tasks`` | :class:`~coevo_gym.view.model.tasks.TaskPage` |
| ``runs/{run}/tasks/{id}`` | :class:`~coevo_gym.view.model.tasks.TaskDetail` |
| ``runs/{run}/drafts`` | :class:`~coevo_gym.view.model.drafts.DraftPage` |
| ``runs/{run}/drafts/{id}`` | :class:`~coevo_gym.view.model.drafts.DraftDetail` |
| ``runs/{run}/evaluations/{arm}/{step}`` | :class:`~coevo_gym.view.model.evals.EvaluationDetail` |
| ``evals`` | :class:`~coevo_gym.view.model.evals.EvalList` |
| ``evals/{name}`` | :class:`~coevo_gym.view.model.evals.EvalDetail` |
| ``evals/{name}/episodes`` | :class:`~coevo_gym.view.model.evals.EpisodePage` |
| ``evals/{name}/episodes/{id}`` | :class:`~coevo_gym.view.model.trajectories.TrajectoryDetail` |
| ``compare?a=&b=`` | :class:`~coevo_gym.view.model.comparing.Compared` |
| ``search?q=`` | :class:`~coevo_gym.view.model.search.SearchResult` |
| ``live`` | server-sent events, see :mod:`coevo_gym.view.server`; not in an export |

Lists accept filters as query parameters; the docstring of the row model lists them. Lists also
accept ``page`` (from 1) and ``per_page`` (50; at most 500). A row must match all parameters; if a
parameter is repeated, the row must match one of its values. ``q`` selects rows that contain every
word, ignoring case. ``sort`` names a field; a leading ``-`` sorts in descending order.

Errors are reported as :class:`~coevo_gym.view.refusals.ApiProblem`, with status 400 for an
invalid parameter, 404 for a missing resource, and 409 for a run that is damaged or has an
unsupported version.
"""
