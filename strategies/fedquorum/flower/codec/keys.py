"""Name the records on the wire, and the keys in them."""

# Records.
ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
FAILURES = "failures"
SUM = "weighted-sum"
LOW_SUM = "weighted-sum-low"
SUM_BINS = "weighted-sum-bins"  # of the sum in a reply, or fixed by a request
RESPONSE_TIMES = "response-times"
CALIBRATION = "calibration"
SCALE = "scale"
START_MODEL = "start-model-{}"  # from 0, if the clients of a node start from several

# Of the four exchanges of a secure sum: in the request, by which a node knows it, and in the reply.
MASK_KEYS = "mask-keys"
MASK_SHARES = "mask-shares"
MASKED_SUM = "masked-sum"
UNMASK = "unmask-sum"
SECURE_SUM_STEPS = (MASK_KEYS, MASK_SHARES, MASKED_SUM, UNMASK)
SUMMED_NUMBERS = "summed-numbers"  # of an evaluation: what a node has, or what it is to mask
MASK_STATE = "mask-state"  # never sent: what a node keeps between two of them

# In requests and in replies.
PROTOCOL_KEY = "protocol"
CLIENT_ID = "client-id"

# In the config of requests.
SERVER_ROUND = "server-round"
PRIORITY = "priority"
GLOBAL_LOSS = "global-loss"
GLOBAL_ACCURACY = "global-accuracy"
EPSILON = "epsilon"
CRITERION = "criterion"
MEASURES_LOSS = "measures-loss"
PROPORTION = "proportion"
BY_DATA = "by-data"
NUM_TERMS = "sum-terms"
START_INDEX = "start-model"  # the index of a client's model among those records
OF_EVALUATION = "of-evaluation"  # whether an exchange of a secure sum is of an evaluation
ASKS_ONLY = "asks-only"  # whether clients only say if they take part, and in how much time
START_ROUND = "start-round"  # the round in which a client was asked, if it trains in a later one
CLIPPING_NORM = "clipping_norm"  # Flower's: the norm to which clients clip their updates
TRAIN_SPLIT = "train-part"
TEST_SPLIT = "test-part"
FINETUNE_EPOCHS = "finetune-epochs"  # of training on the client's rows before the evaluation

# In the metrics of replies, and beside the failures.
STATUS = "status"
REASON = "reason"
NAMES = "names"
NAME = "name"
NUM_EXAMPLES = "num-examples"
LOSS = "loss"
ACCURACY = "accuracy"
NORM_BIT = "norm_bit"  # Flower's: whether a client's update was clipped
TEST_NUM_EXAMPLES = "test-num-examples"
TEST_LOSS = "test-loss"
TEST_ACCURACY = "test-accuracy"
TEST_METRIC = "test-metric"
TEST_R2 = "test-r2"
TEST_AVERAGE_PRECISION = "test-average-precision"
VALIDATION_NUM_EXAMPLES = "validation-num-examples"
VALIDATION_LOSS = "validation-loss"
VALIDATION_ACCURACY = "validation-accuracy"
VALIDATION_METRIC = "validation-metric"
VALIDATION_R2 = "validation-r2"
VALIDATION_AVERAGE_PRECISION = "validation-average-precision"
ABSENT_PREFIX = "absent-"  # and a key: marks the clients that do not report the number

# Beside the sums.
BINS = "bins"

# In the record of bins that are fixed before training, in requests.
EXPONENTS = "exponents"

# Beside the response times.
SECONDS = "seconds"

# In the record of calibration.
TEST_CALIBRATION = "test-calibration"
VALIDATION_CALIBRATION = "validation-calibration"

# In the records of a secure sum. Lists have an entry for each node of the list of ids.
MASKING_NODE = "masking-node"
MASK_KEY = "mask-key"
SHARE_KEY = "share-key"
OWN_HASH = "own-hash"
THRESHOLD = "threshold"
SEALED_SHARES = "sealed-shares"
HOLDER = "share-holder"
MASK_HASHES = "mask-share-hashes"
OWN_HASHES = "own-share-hashes"
SURVIVOR = "surviving-node"
LOST_NODE = "lost-node"
OWN_SHARES = "own-shares"
LOST_SHARES = "lost-shares"
VALUES = "values"
RUN = "run"
ROUND = "round"
SECRETS = "secrets"  # of the key for common masks, of the own mask, of the key for shares

TRAIN_METRICS = {
    "num_examples": NUM_EXAMPLES,
    "loss": LOSS,
    "accuracy": ACCURACY,
    "norm_bit": NORM_BIT,
}
"""The fields of a TrainResult that are numbers, and their keys."""

EVALUATE_METRICS = {
    "num_examples": NUM_EXAMPLES,
    "loss": LOSS,
    "accuracy": ACCURACY,
    "test_num_examples": TEST_NUM_EXAMPLES,
    "test_loss": TEST_LOSS,
    "test_accuracy": TEST_ACCURACY,
    "test_metric": TEST_METRIC,
    "test_r2": TEST_R2,
    "test_average_precision": TEST_AVERAGE_PRECISION,
    "validation_num_examples": VALIDATION_NUM_EXAMPLES,
    "validation_loss": VALIDATION_LOSS,
    "validation_accuracy": VALIDATION_ACCURACY,
    "validation_metric": VALIDATION_METRIC,
    "validation_r2": VALIDATION_R2,
    "validation_average_precision": VALIDATION_AVERAGE_PRECISION,
}
"""The fields of an EvaluateResult that are numbers, and their keys."""

CALIBRATION_METRICS = {
    "test_calibration": TEST_CALIBRATION,
    "validation_calibration": VALIDATION_CALIBRATION,
}
"""The fields of an EvaluateResult that are sums of bins of confidence, and their keys."""

EVALUATION_KEYS = (
    *(LOSS, ACCURACY, TEST_LOSS, TEST_ACCURACY, TEST_METRIC, TEST_R2, TEST_AVERAGE_PRECISION),
    *(VALIDATION_LOSS, VALIDATION_ACCURACY, VALIDATION_METRIC, VALIDATION_R2),
    *(VALIDATION_AVERAGE_PRECISION, TEST_CALIBRATION, VALIDATION_CALIBRATION),
)
"""The results of evaluating a model, which a node may withhold."""

VALIDATION_COUNTERPARTS = {
    TEST_LOSS: VALIDATION_LOSS,
    TEST_ACCURACY: VALIDATION_ACCURACY,
    TEST_METRIC: VALIDATION_METRIC,
    TEST_R2: VALIDATION_R2,
    TEST_AVERAGE_PRECISION: VALIDATION_AVERAGE_PRECISION,
    TEST_CALIBRATION: VALIDATION_CALIBRATION,
}
"""The validation metric that a node withholds together with each test metric."""

REQUEST_KEYS = frozenset(
    {
        PROTOCOL_KEY,
        CLIENT_ID,
        SERVER_ROUND,
        PRIORITY,
        GLOBAL_LOSS,
        GLOBAL_ACCURACY,
        EPSILON,
        CRITERION,
        MEASURES_LOSS,
        PROPORTION,
        BY_DATA,
        NUM_TERMS,
        START_INDEX,
        ASKS_ONLY,
        OF_EVALUATION,
        START_ROUND,
        CLIPPING_NORM,
        TRAIN_SPLIT,
        TEST_SPLIT,
        FINETUNE_EPOCHS,
    }
)
"""The protocol's keys in a request's config; a user's config can only add other keys."""
