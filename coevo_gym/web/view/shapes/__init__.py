"""The shapes of the viewer's JSON, one file for each thing that it shows.

All paths below begin with ``/api/``. A server answers them; an export holds the same answers under
the same paths. Every answer is one of these models; numbers that are not known are ``null``.

| path | answer |
|---|---|
| ``about`` | :class:`~coevo_gym.web.view.shapes.base.About` |
| ``runs`` | :class:`~coevo_gym.web.view.shapes.runs.RunList` |
| ``runs/{run}`` | :class:`~coevo_gym.web.view.shapes.runs.RunDetail` |
| ``runs/{run}/progress`` | :class:`~coevo_gym.web.view.shapes.runs.Progress` |
| ``runs/{run}/arms/{arm}/steps`` | :class:`~coevo_gym.web.view.shapes.steps.StepTable` |
| ``runs/{run}/arms/{arm}/notes`` | :class:`~coevo_gym.web.view.shapes.notes.ArmNotes` |
| ``runs/{run}/arms/{arm}/groups`` | :class:`~coevo_gym.web.view.shapes.steps.GroupPage` |
| ``runs/{run}/arms/{arm}/groups/{group}`` | :class:`~coevo_gym.web.view.shapes.steps.GroupDetail` |
| ``runs/{run}/arms/{arm}/rounds`` | :class:`~coevo_gym.web.view.shapes.steps.RoundList` |
| ``runs/{run}/arms/{arm}/rounds/{round}`` | :class:`~coevo_gym.web.view.shapes.steps.RoundDetail` |
| ``runs/{run}/trajectories`` | :class:`~coevo_gym.web.view.shapes.trajectories.TrajectoryPage` |
| ``runs/{run}/trajectories/{id}`` | :class:`~coevo_gym.web.view.shapes.trajectories.TrajectoryDetail` |
| ``runs/{run}/tasks`` | :class:`~coevo_gym.web.view.shapes.tasks.TaskPage` |
| ``runs/{run}/tasks/{id}`` | :class:`~coevo_gym.web.view.shapes.tasks.TaskDetail` |
| ``runs/{run}/drafts`` | :class:`~coevo_gym.web.view.shapes.drafts.DraftPage` |
| ``runs/{run}/drafts/{id}`` | :class:`~coevo_gym.web.view.shapes.drafts.DraftDetail` |
| ``runs/{run}/evaluations/{arm}/{step}`` | :class:`~coevo_gym.web.view.shapes.evals.EvaluationDetail` |
| ``evals`` | :class:`~coevo_gym.web.view.shapes.evals.EvalList` |
| ``evals/{name}`` | :class:`~coevo_gym.web.view.shapes.evals.EvalDetail` |
| ``evals/{name}/episodes`` | :class:`~coevo_gym.web.view.shapes.evals.EpisodePage` |
| ``evals/{name}/episodes/{id}`` | :class:`~coevo_gym.web.view.shapes.trajectories.TrajectoryDetail` |
| ``compare?a=&b=`` | :class:`~coevo_gym.web.view.shapes.evals.Compared` |
| ``search?q=`` | :class:`~coevo_gym.web.view.shapes.found.SearchResult` |
| ``live`` | server-sent events, see :mod:`coevo_gym.web.view.live`; not in an export |

Lists take filters as parameters of the query, each named in the docstring of its rows' model, and
``page`` (from 1) and ``per_page`` (50; at most 500). A parameter that is given several times takes
rows that match any of its values; rows have to match all parameters. ``q`` takes rows that hold
every one of its words, whatever the case. ``sort`` names a field, with ``-`` before it from the
largest on.

What goes wrong is answered by :class:`~coevo_gym.web.view.shapes.base.Problem`: status 400 for a
parameter that cannot be read, 404 for what is not there, 409 for a run that is damaged or from a
version that cannot be read.
"""  # noqa: E501 (a table)
