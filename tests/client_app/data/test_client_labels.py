"""What lines that a run records call its clients."""

from client_app.data.client_labels import label_clients


def test_names_stand_where_records_keep_them() -> None:
    """An id stands in for a name that is not recorded, and for a client without a name."""
    assert label_clients(["North", "South"], 2, recorded=True) == ("North", "South")
    assert label_clients(["North", "South"], 2, recorded=False) == ("client 0", "client 1")
    assert label_clients(None, 1, recorded=True) == ("client 0",)


def test_many_clients_have_ids() -> None:
    """More than 1,000 names are not recorded."""
    names = [f"n{k}" for k in range(1001)]
    assert label_clients(names[:1000], 1000, recorded=True)[999] == "n999"
    assert label_clients(names, 1001, recorded=True)[1000] == "client 1000"
