# The public names of pebblesim, each with its home: the one list, for type checkers and for the lazy imports alike.
from . import claims as claims
from .advice.advise import advise as advise
from .advice.result import Advice as Advice
from .api.bounding import Bounds as Bounds, bounds as bounds
from .api.crossover import crossover as crossover
from .api.crossover_result import Crossing as Crossing, Crossover as Crossover
from .api.derive import formula as formula, numbers as numbers, show as show
from .api.gaps import Gaps as Gaps, gaps as gaps
from .api.glossary import glossary as glossary
from .api.graph import graph as graph, optimum as optimum
from .api.listing import Listing as Listing, list as list
from .api.overtaking import bound_exponent as bound_exponent
from .api.own_bounds import bound as bound
from .api.play import Played as Played, play as play
from .asymptotics.tropical import decide as decide
from .cachesim.cache import accesses as accesses, cache as cache
from .cachesim.l2_traffic import L2 as L2, l2 as l2
from .cachesim.result import Cached as Cached, CacheTable as CacheTable
from .claims import verify as verify
from .core.errors import (
    Infeasible as Infeasible,
    PebblesimError as PebblesimError,
    TraceError as TraceError,
    UsageError as UsageError,
)
from .core.notation import parse as parse
from .core.results import Result as Result
from .counting.compare import Comparison as Comparison, compare as compare
from .counting.count import Counted as Counted, count as count
from .dags.formats import load_graph as load_graph, save_graph as save_graph
from .dags.generators import generate as generate
from .dags.judging import judge as judge
from .dags.search import Pebbling as Pebbling, pebble as pebble
from .explaining.program import explain as explain
from .explaining.result import Explained as Explained
from .game.referee import Game as Game, IllegalMove as IllegalMove, referee as referee
from .graphs.cdag import Cdag as Cdag
from .language import (
    Block as Block,
    Index as Index,
    Machine as Machine,
    Tensor as Tensor,
    Tile as Tile,
    exp as exp,
    log as log,
    maximum as maximum,
    relu as relu,
    rowmax as rowmax,
    rowsum as rowsum,
    sigmoid as sigmoid,
    step as step,
)
from .language.problems import Problem as Problem, Theta as Theta, problem as problem
from .language.registry import Schedule as Schedule, schedule as schedule
from .lower_bounds.own import OwnBound as OwnBound
from .machines.counting import OnMachine as OnMachine
from .machines.finding import on_machine as on_machine
from .parallel.devices import Devices as Devices, devices as devices
from .sparse_backward.backward import backlite as backlite
from .sparse_backward.inputs import load_head as load_head, synthetic_head as synthetic_head
from .sparse_backward.result import BackLite as BackLite
from .sweeps.sweep import sweep as sweep
from .synthesis.on_devices import FoundOnDevices as FoundOnDevices, search_on_devices as search_on_devices
from .synthesis.search import Found as Found, search as search
from .views.recording import Recording as Recording, record as record

__version__: str
