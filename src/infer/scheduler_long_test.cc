// A million operations of the scheduler, half of them with drafts.
#include "infer/testing/scheduler_soak.h"

namespace octet {
namespace {

TEST(SchedulerSoak, AMillionOperations) {
  int64_t operations = 0;
  for (uint64_t seed = 100; operations < 1'000'000; ++seed)
    operations += test::run_everything(seed, 20'000, /*drafting=*/seed % 2 == 0);
}

}  // namespace
}  // namespace octet
