"""Our model of first fit takes the devices that the allocator of kube-scheduler 1.37 takes."""

from tests.e2e.first_fit import compare


def test_the_model_takes_the_devices_that_kube_scheduler_takes() -> None:
    counts, different = compare(range(1000))
    print(dict(counts))
    assert not different, "\n".join(different[:5])
    assert counts["same devices"] > 700
    assert counts["given up"] < 20
