"""Every rule, in the order of ids: the explicit list that a test compares with this folder."""

from __future__ import annotations

from graphdoctor.rules.backward_beyond_step import BackwardBeyondStep
from graphdoctor.rules.barrier_in_step import BarrierInStep
from graphdoctor.rules.capture_dependent_result import CaptureDependentResult
from graphdoctor.rules.cold_process_group import ColdProcessGroup
from graphdoctor.rules.collectives_differ import CollectivesDiffer
from graphdoctor.rules.cpu_operator import CpuOperator
from graphdoctor.rules.data_dependent_branch import DataDependentBranch
from graphdoctor.rules.data_dependent_shape import DataDependentShape
from graphdoctor.rules.default_stream_ddp import DefaultStreamDdp
from graphdoctor.rules.device_to_host_copy import DeviceToHostCopy
from graphdoctor.rules.explicit_synchronize import ExplicitSynchronize
from graphdoctor.rules.fragmented import Fragmented
from graphdoctor.rules.frozen_cpu_scalar import FrozenCpuScalar
from graphdoctor.rules.frozen_learning_rate import FrozenLearningRate
from graphdoctor.rules.grad_scaler_read import GradScalerRead
from graphdoctor.rules.growing_state import GrowingState
from graphdoctor.rules.hidden_sync_operator import HiddenSyncOperator
from graphdoctor.rules.host_random import HostRandom
from graphdoctor.rules.host_read import HostRead
from graphdoctor.rules.host_time import HostTime
from graphdoctor.rules.host_to_device_copy import HostToDeviceCopy
from graphdoctor.rules.iterator_advanced import IteratorAdvanced
from graphdoctor.rules.mutated_input import MutatedInput
from graphdoctor.rules.nested_graph_replay import NestedGraphReplay
from graphdoctor.rules.non_capturable_optimizer import NonCapturableOptimizer
from graphdoctor.rules.not_launch_bound import NotLaunchBound
from graphdoctor.rules.object_collective import ObjectCollective
from graphdoctor.rules.operators_differ import OperatorsDiffer
from graphdoctor.rules.rebound_state import ReboundState
from graphdoctor.rules.repeated_seed import RepeatedSeed
from graphdoctor.rules.rng_state_call import RngStateCall
from graphdoctor.rules.rule import Rule
from graphdoctor.rules.scalars_differ import ScalarsDiffer
from graphdoctor.rules.shapes_differ import ShapesDiffer
from graphdoctor.rules.state_branch import StateBranch
from graphdoctor.rules.stream_or_event_query import StreamOrEventQuery
from graphdoctor.rules.tensor_from_python_data import TensorFromPythonData
from graphdoctor.rules.tensor_printing import TensorPrinting
from graphdoctor.rules.unordered_streams import UnorderedStreams
from graphdoctor.rules.unregistered_generator import UnregisteredGenerator
from graphdoctor.rules.varying_input_shapes import VaryingInputShapes
from graphdoctor.rules.work_on_another_stream import WorkOnAnotherStream

ALL_RULES: tuple[type[Rule], ...] = (
    HostRead,
    TensorPrinting,
    DeviceToHostCopy,
    HostToDeviceCopy,
    TensorFromPythonData,
    DataDependentShape,
    DataDependentBranch,
    ExplicitSynchronize,
    StreamOrEventQuery,
    RngStateCall,
    NonCapturableOptimizer,
    GradScalerRead,
    HiddenSyncOperator,
    UnregisteredGenerator,
    UnorderedStreams,
    BackwardBeyondStep,
    NestedGraphReplay,
    BarrierInStep,
    ObjectCollective,
    DefaultStreamDdp,
    ColdProcessGroup,
    OperatorsDiffer,
    ShapesDiffer,
    ScalarsDiffer,
    FrozenLearningRate,
    ReboundState,
    GrowingState,
    HostRandom,
    HostTime,
    CpuOperator,
    MutatedInput,
    FrozenCpuScalar,
    VaryingInputShapes,
    WorkOnAnotherStream,
    CaptureDependentResult,
    RepeatedSeed,
    CollectivesDiffer,
    StateBranch,
    IteratorAdvanced,
    NotLaunchBound,
    Fragmented,
)
