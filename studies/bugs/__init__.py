"""The bugs that are planted: one function each, by the part of a model in which they are made."""

from studies.bugs.catalogue import BUGS as BUGS
from studies.bugs.catalogue import Bug as Bug
from studies.bugs.spot import Planting as Planting
from studies.bugs.spot import Spot as Spot
