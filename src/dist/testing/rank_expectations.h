// What every way between ranks must do; each test calls these on all ranks of a communicator.
#pragma once

#include "dist/communicator.h"

namespace octet {

// Every rank gives every rank of its groups a number of its own, a hundred times; nothing, and three MiB.
void expect_exchanges_within_groups(Communicator& rank);
void expect_exchanges_of_all_sizes(Communicator& rank);
// Rank r gives rank r + 1 something r + 1 times, twenty times over: others exchange more often than one, and not with
// it.
void expect_exchanges_of_neighbours(Communicator& rank);
// Rank 1 ends the exchanges of all. Nothing can be exchanged after these.
void expect_an_abort_ends_all(Communicator& rank);
void expect_unlike_exchanges_are_refused(Communicator& rank);
// Called on rank 0 only, of a communicator whose timeout is 0.01 s.
void expect_a_silent_rank_is_named(Communicator& rank);

}  // namespace octet
