// Weights of a run that trains an adapter: the frozen ones of its base, and the adapter's, fresh or from a checkpoint.
#pragma once

#include <string>

#include "exec/executor.h"
#include "model/adapter.h"
#include "weights/weights.h"

namespace octet {

// Fills the executor's program, whose frozen parameters are the base's, and prepares. Trained ones come from
// `checkpoint`, which has them under their own names; "": the base's begin as they are there, an adapter's as its
// leaves say, magnitudes as the norms of the base's rows.
void load_adapted(const WeightSource& base, const AdapterSpec& adapter, const std::string& checkpoint, uint64_t seed,
                  Executor& executor, const BytesLoaded& loaded);

}  // namespace octet
