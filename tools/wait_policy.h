// How idle threads of a parallel region wait for the next one.
#pragma once

namespace octet {

// libgomp's threads spin for milliseconds by default; on a machine with anything else to do, that takes the cores from
// the very threads they wait for, and training runs many times slower. They are told to look a thousand times, tens of
// microseconds, and then to sleep: regions that follow each other closely find them awake (docs/results.md has what
// that gives and costs). The library reads its settings from the environment before main, so the program starts itself
// once more, unless the user has chosen (OMP_WAIT_POLICY or GOMP_SPINCOUNT). Call first in main.
void settle_wait_policy(char** argv);

}  // namespace octet
