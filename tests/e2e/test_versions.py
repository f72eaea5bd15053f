"""The page of tested versions: a run replaces the section of its own release only."""

from tests.e2e.versions import LOCAL, Run, written

_RUNS = {
    Run("tests/e2e", "1.37.0", "1.37.0", "KubeSchedulerConfiguration v1"),
    Run("tests/contract/scheduling", LOCAL, "1.37.0", "KubeSchedulerConfiguration v1"),
}


def test_a_run_replaces_the_section_of_its_release_alone() -> None:
    page = written("", "1.9.0", {Run("tests/e2e", "1.9.0")})
    page = written(page, "1.37.0", {Run("tests/e2e", "gone")})
    page = written(page, "1.37.0", _RUNS)
    assert "gone" not in page
    assert page.index("## Kubernetes 1.37.0") < page.index("## Kubernetes 1.9.0")
    assert "| tests/e2e | 1.9.0 |  |  |  |" in page
    assert page.index("tests/contract/scheduling") < page.index("tests/e2e | 1.37.0")


def test_the_same_runs_leave_the_page_as_it_is() -> None:
    page = written(written("", "1.30.14", {Run("tests/e2e", "1.30.14")}), "1.37.0", _RUNS)
    assert written(page, "1.37.0", _RUNS) == page
    assert written(page, "1.30.14", {Run("tests/e2e", "1.30.14")}) == page
