"""Define the protocol between server and clients, as Flower records.

Only this package knows record names and keys (``keys``). All other code works with the dataclasses
of ``requests`` and ``results``. Arrays keep the names of the model's ``state_dict``.

Every message of this protocol carries its version, ``protocol``; messages of version 1 have none.
A message of another version is refused, with a reason that says which side to update. Messages
of Flower's standard protocol (``standard``) carry no version and name no clients.

Query (the clients that a node hosts)
    request: ``config`` {protocol}; reply: ``metrics`` {protocol, client-id: list}, or a single
    number, and ``names`` {client-id: list, name: list} of clients whose device gives a name. A
    device of one client may add its ``scale``, a record of the app's that nothing here reads.
Train
    request: ``arrays`` + ``config`` {protocol, server-round, client-id: list, priority: list,
    global-loss, global-accuracy, epsilon, criterion}; no epsilon means no gate. Reply of one
    client, Flower's standard form: ``arrays`` + ``metrics`` {protocol, client-id, status,
    num-examples, loss, accuracy}. Reply of a node asked for several clients: the same keys with
    lists; client-id and status have an entry for every selected client, the other lists for every
    client that trained, and the arrays are stacked on a leading axis over those that trained. A
    client that declined or is unavailable has only its id and status. Every number is a float,
    except ids, statuses and the protocol's version. In a list, NaN is the placeholder for a client
    that does not report the number, and a second list, named ``absent-`` and the key, has 1 at its
    index: a NaN without that mark was reported, as by a diverged model. With ``measures-loss``
    False a client does not evaluate the model that it received: it reports neither loss nor
    accuracy. With ``proportion``: list (and ``by-data``) in the request, a node may add up the
    updates itself. Instead of ``arrays`` the reply then has ``weighted-sum``, sum_k a_k (x_k - x)
    in float64 over the clients that trained; a_k is the client's proportion, times its num-examples
    if ``by-data``. The sum leaves out a client whose update is not finite, with status REJECTED.
    ``sum-terms`` in the request is the number of clients selected in the round, on all nodes; the
    width of the sum's bins follows from it. ``weighted-sum`` has the sums of the parts of terms in
    the upper bin of each array, ``weighted-sum-low`` those in the bin below, and
    ``weighted-sum-bins`` {bins: list} the indices of these bins (``fedquorum.server.exact_sum``).
    Arrays whose terms are all 0 are left out. A node of one client gets a ``proportion`` only if
    the server requires its sum, which takes four times the bytes of a model in float32. With
    ``weighted-sum-bins`` {exponents: list} in the request the unit of each array's upper bin is
    2^exponent, every index of a bin in the reply is 0, no array is left out, and a client with a
    term beyond its bin is, with status REJECTED (``fedquorum.server.fixed_bins``). With
    ``clipping_norm`` in the request clients clip
    their updates; ``norm_bit`` in the metrics is 1 for a client whose update was longer. If clients
    start from past models, a node whose clients share one gets it as ``arrays``. Otherwise it gets
    each distinct model once, as ``start-model-0``, ``start-model-1``, ... instead of ``arrays``,
    and ``start-model``: list in the config has the index of each client's model. With ``asks-only``
    the message has no arrays, and its reply only ids, statuses and response times. With
    ``start-round``: list each client trains as in the round in which it was asked.
Train, with masks (``fedquorum.flower.secure``)
    four requests of type train, each with ``client-id`` and a record by which the node knows it.
    The first, second and fourth one have ``asks-only`` and no arrays, the last three
    ``start-round``. Their replies have ids and statuses, and a record of the same name. Lists have
    an entry for each node of the list of node ids.
    1. ``mask-keys`` {}; reply {mask-key, share-key, own-hash: bytes}.
    2. ``mask-shares`` {threshold, masking-node: list, and mask-key, share-key, own-hash: list of
    bytes}; reply {masking-node, sealed-shares: lists, and share-holder, mask-share-hashes,
    own-share-hashes: lists, the node itself among the holders}.
    3. a train request with ``weighted-sum-bins`` and ``masked-sum`` {masking-node, sealed-shares,
    mask-share-hashes, own-share-hashes: lists}; the reply has no other arrays than ``masked-sum``,
    one array ``values``: the sum's high parts and then its low parts as integers, with masks, and
    last the number of updates that needed no clipping. Of the metrics it has ids and statuses, and
    num-examples with ``by-data``.
    4. ``unmask-sum`` {surviving-node, lost-node: lists}; reply {surviving-node, own-shares,
    lost-node, lost-shares: lists}.
    For an evaluation, all four have ``start-round``, and ``of-evaluation`` but for the third one,
    an evaluate request with ``masked-sum`` and ``sum-terms``, the number of clients on all nodes.
    Its reply has ids, statuses and ``masked-sum``: the sums of w x, of w and of ones for the losses
    and accuracies x, w the client's num-examples with ``by-data``, and 1 without
    (``fedquorum.server.number_sum``). The reply with keys has ``summed-numbers`` {names: list}, the
    x that the node expects to have; the evaluate request those to be summed, all others are 0; its
    reply those that the node turned out to have.
    Between them a node keeps its ``secrets`` of a run and round in ``mask-state``, never sent.
Evaluate
    request: ``arrays`` + ``config`` {protocol, server-round, client-id: list, train-part: list,
    test-part: list}; reply: ``metrics`` as above with num-examples, loss, accuracy (training
    split), test-num-examples, test-loss, test-accuracy and, if another metric is configured,
    test-metric (test split), beside it test-r2 if numbers are predicted and
    test-average-precision beside AUROC, and the same with validation- if clients have such a
    split. A number that is not evaluated or not defined is NaN, without a second list. Where
    classes are predicted, ``calibration`` {test-calibration: list of bytes} has the sums of each
    client's bins of confidence (``fedquorum.metrics.calibration``), the same with validation-,
    and no bytes for a client without them. With ``finetune-epochs`` in
    the request each client trains the arrays for that many epochs on its own rows, evaluates the
    result and discards it: the reply has the same keys, and no arrays.
A client that failed has its reason in ``failures`` {client-id: list, reason: list}. A train reply
of simulated devices has ``response-times`` {client-id: list, seconds: list}.
"""

from .arrays import (
    NamedArrays,
    count_bytes,
    decode_arrays,
    drop_arrays,
    encode_arrays,
    select_records,
    view_arrays,
)
from .keys import CLIENT_ID, EVALUATION_KEYS, NORM_BIT, VALIDATION_COUNTERPARTS
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
    decode_listed_clients,
    decode_selected_clients,
    decode_start_models,
    decode_sum_bins,
    decode_train_request,
    encode_evaluate_request,
    encode_inquiry,
    encode_query,
    encode_train_request,
    filter_clients,
    find_num_terms,
    find_round,
    find_weighs_by_data,
    has_clipping_norm,
    has_masks,
    is_inquiry,
    is_of_evaluation,
    requests_training,
    view_model,
    view_user_config,
    was_asked_before,
)
from .results import (
    ClientResult,
    EvaluateResult,
    ResultT,
    Status,
    TrainResult,
    add_client_names,
    add_response_times,
    add_scale,
    add_unavailable,
    decode_client_names,
    decode_evaluate_reply,
    decode_hosted_clients,
    decode_partial_sum,
    decode_train_reply,
    drop_metrics,
    drop_sum,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_objective,
    encode_sums,
    encode_train_reply,
    find_scale,
    find_unavailable_clients,
    to_metrics,
)
from .secure import decode_masked_vector, drop_mask_state
from .standard import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
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
    "add_client_names",
    "add_response_times",
    "add_scale",
    "add_unavailable",
    "add_user_config",
    "build_evaluate_task",
    "build_train_task",
    "check_query",
    "count_bytes",
    "decode_arrays",
    "decode_client_names",
    "decode_evaluate_reply",
    "decode_evaluate_request",
    "decode_hosted_clients",
    "decode_listed_clients",
    "decode_masked_vector",
    "decode_partial_sum",
    "decode_selected_clients",
    "decode_standard_evaluate_reply",
    "decode_standard_train_reply",
    "decode_start_models",
    "decode_sum_bins",
    "decode_train_reply",
    "decode_train_request",
    "drop_arrays",
    "drop_mask_state",
    "drop_metrics",
    "drop_sum",
    "encode_arrays",
    "encode_evaluate_reply",
    "encode_evaluate_request",
    "encode_hosted_clients",
    "encode_inquiry",
    "encode_objective",
    "encode_query",
    "encode_standard_query",
    "encode_standard_request",
    "encode_sums",
    "encode_train_reply",
    "encode_train_request",
    "filter_clients",
    "find_num_terms",
    "find_round",
    "find_scale",
    "find_standard_loss_key",
    "find_unavailable_clients",
    "find_weighs_by_data",
    "has_clipping_norm",
    "has_masks",
    "has_protocol_version",
    "is_inquiry",
    "is_native_reply",
    "is_of_evaluation",
    "requests_training",
    "select_records",
    "to_metrics",
    "view_arrays",
    "view_model",
    "view_user_config",
    "was_asked_before",
]
