"""fedpca datasets: the names of the built-in datasets."""

from fedpca.cli.common import AsJson, print_result


def datasets(as_json: AsJson = False) -> None:
    """List the datasets that `fedpca.datasets.load` can load.

    Example:

    ```
    fedpca datasets
    ```
    """
    from fedpca.datasets import names

    print_result({"datasets": list(names())}, as_json, "\n".join(names()))
