// How idle OpenMP threads wait for the next parallel region.
#pragma once

namespace octet {

// libgomp's threads spin for milliseconds by default; on a machine that runs other work they take cores from the
// threads they wait for, and training runs many times slower. This sets the spin count to a thousand, tens of
// microseconds, after which they sleep; regions in quick succession find them awake (measured in docs/results.md). The
// library reads its settings from the environment before main, so the program re-executes itself unless the user has
// set OMP_WAIT_POLICY or GOMP_SPINCOUNT. Call first in main.
void settle_wait_policy(char** argv);

}  // namespace octet
