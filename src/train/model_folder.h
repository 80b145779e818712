// What a folder named by model.from must be before a run begins with its weights: whole, and of the data's vocabulary.
#pragma once

#include <string>

#include "io/corpus.h"

namespace octet {

// Sizes and checksums by the folder's manifest, where it has one, of the files that such a run reads. Throws kCorrupt.
void check_whole(const std::string& folder);

// The folder's tokenizer against that of the set `prefix`, described by `data`. Ids that stand for other bytes throw
// kInvalidArgument with the first of them; a warning where ids agree but texts may be split otherwise. A folder without
// a tokenizer passes.
void check_vocabulary(const std::string& folder, const std::string& prefix, const DatasetInfo& data);

}  // namespace octet
