"""Define the protocol between server and clients, as Flower records.

Only this package knows record names and keys (``keys``). All other code works with the dataclasses
of ``requests`` and ``answers``. Arrays keep the names of the model's ``state_dict``.

Every message of this protocol carries its number, ``protocol``; messages of version 1 have none.
A message of another version is refused, with a reason that says which side to update. Messages
of Flower's standard protocol (``standard``) carry no number, and name no clients.

Query (which clients a node hosts)
    request: ``config`` {protocol}; reply: ``metrics`` {protocol, client-id: list}, or a single
    number.
Train
    request: ``arrays`` + ``config`` {protocol, server-round, client-id: list, priority: list,
    global-loss, global-accuracy, epsilon, criterion}; no epsilon means no gate.
    Reply of one client, Flower's standard form: ``arrays`` + ``metrics`` {protocol, client-id,
    status, num-examples, loss, accuracy}. Reply of a node asked for several clients: the same keys
    with lists; client-id and status run over all the clients asked, the rest over those that
    trained, and the arrays are stacked on a leading axis over those that trained.
    The part of a client that declined or is unavailable is its id and status, nothing else.
    Every number is a float, whoever reports it, except ids, statuses and the protocol's number. In
    a list NaN holds the place of a client that does not say the number, and a second list, named
    ``absent-`` and the key, has 1 in this place: NaN alone is said, as by a diverged model.
    ``measures-loss`` False asks a client not to measure what it received: no loss, no accuracy.
    With ``proportion``: list (and ``by-data``) in the request a node may add the updates up
    itself: the reply then has ``weighted-sum``, sum_k a_k (x_k - x) in float64 over those that
    trained, a_k being the client's proportion, times its num-examples if ``by-data``; instead
    of ``arrays``. A client whose update is not finite is not in it: its status is REJECTED.
    ``sum-terms`` in the request is how many clients are asked in the round, on all nodes; the width
    of the sum's bins follows from it. ``weighted-sum`` has the sums of the parts of terms in the
    upper bin of each array, ``weighted-sum-low`` those in the bin below, and ``weighted-sum-bins``
    {bins: list} says which bins these are (``fedquorum.exact_sum``). Arrays whose terms are all 0
    are left out.
    With ``clipping_norm`` in the request clients clip their updates; ``norm_bit`` in the metrics is
    1 for a client whose update was longer.
    With ``keeps-model`` in the request (also to evaluate) each client works on a model that stays
    with it, the arrays being where it starts from, and replies without arrays.
    Where clients start from past models, a node whose clients share one gets it as ``arrays``.
    Otherwise it gets each once, as ``start-model-0``, ``start-model-1``, ... instead of
    ``arrays``, and ``start-model``: list in the config says which is each client's.
Evaluate
    request: ``arrays`` + ``config`` {protocol, server-round, client-id: list, train-part: list,
    test-part: list}; reply: ``metrics`` as above with num-examples, loss, accuracy (training
    part), test-num-examples, test-loss, test-accuracy and, where another metric is
    configured, test-metric (test part), the same with validation- where clients have such a part,
    NaN where not measured or not defined, which needs no second list.
A client that failed has its reason in ``failures`` {client-id: list, reason: list}. A train reply
of simulated devices has ``response-times`` {client-id: list, seconds: list}.
"""

from .arrays import NamedArrays, count_bytes, decode_arrays, encode_arrays, view_arrays
from .keys import CLIENT_ID, EVALUATION_KEYS, NORM_BIT, VALIDATION_COUNTERPARTS
from .kinds import select_records
from .requests import (
    EvaluateRequest,
    EvaluateTask,
    NodeStartModels,
    TrainRequest,
    TrainTask,
    add_user_config,
    build_evaluate_task,
    build_train_task,
    check_query,
    decode_evaluate_request,
    decode_selected_clients,
    decode_start_models,
    decode_train_request,
    encode_evaluate_request,
    encode_query,
    encode_train_request,
    filter_clients,
)
from .results import (
    ClientResult,
    EvaluateResult,
    ResultT,
    Status,
    TrainResult,
    add_response_times,
    add_unavailable,
    decode_evaluate_reply,
    decode_hosted_clients,
    decode_partial_sum,
    decode_train_reply,
    drop_arrays,
    drop_metrics,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_objective,
    encode_train_reply,
    find_unavailable_clients,
    to_metrics,
)
from .standard import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
    FOUND_KEYS_PREFIX,
    LOSS_KEYS,
    WEIGHTED_BY_KEY,
    ProtocolMismatchError,
    decode_standard_evaluate_reply,
    decode_standard_train_reply,
    encode_standard_query,
    encode_standard_request,
    find_standard_loss_key,
    is_native_reply,
)
from .version import PROTOCOL_VERSION, has_protocol_version

__all__ = [
    "ACCURACY_KEY",
    "ARRAYRECORD_KEY",
    "CLIENT_ID",
    "CONFIGRECORD_KEY",
    "EVALUATION_KEYS",
    "FOUND_KEYS_PREFIX",
    "LOSS_KEYS",
    "NORM_BIT",
    "PROTOCOL_VERSION",
    "VALIDATION_COUNTERPARTS",
    "WEIGHTED_BY_KEY",
    "ClientResult",
    "EvaluateRequest",
    "EvaluateResult",
    "EvaluateTask",
    "NamedArrays",
    "NodeStartModels",
    "ProtocolMismatchError",
    "ResultT",
    "Status",
    "TrainRequest",
    "TrainResult",
    "TrainTask",
    "add_response_times",
    "add_unavailable",
    "add_user_config",
    "build_evaluate_task",
    "build_train_task",
    "check_query",
    "count_bytes",
    "decode_arrays",
    "decode_evaluate_reply",
    "decode_evaluate_request",
    "decode_hosted_clients",
    "decode_partial_sum",
    "decode_selected_clients",
    "decode_standard_evaluate_reply",
    "decode_standard_train_reply",
    "decode_start_models",
    "decode_train_reply",
    "decode_train_request",
    "drop_arrays",
    "drop_metrics",
    "encode_arrays",
    "encode_evaluate_reply",
    "encode_evaluate_request",
    "encode_hosted_clients",
    "encode_objective",
    "encode_query",
    "encode_standard_query",
    "encode_standard_request",
    "encode_train_reply",
    "encode_train_request",
    "filter_clients",
    "find_standard_loss_key",
    "find_unavailable_clients",
    "has_protocol_version",
    "is_native_reply",
    "select_records",
    "to_metrics",
    "view_arrays",
]
