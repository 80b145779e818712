#include "train/model_folder.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/manifest.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

// Null, with a line in the log, where there is none or none that can be read.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& folder) {
  try {
    return load_tokenizer(folder);
  } catch (const Error& error) {
    log_warning("model.from {}: its vocabulary is not compared with the data's: {}", folder, error.message());
    return nullptr;
  }
}

// Null if the data set's copy of its tokenizer is missing or has changed.
std::unique_ptr<Tokenizer> tokenizer_of(const DatasetInfo& data) {
  if (!path_exists(data.tokenizer_path)) return nullptr;
  auto tokenizer = load_tokenizer(data.tokenizer_path);
  return tokenizer->fingerprint() == data.tokenizer_fingerprint ? std::move(tokenizer) : nullptr;
}

}  // namespace

void check_whole(const std::string& folder) {
  if (!has_manifest(folder)) return;
  const LoggedTime time("checksums of model.from");
  try {
    verify_folder(folder, Verify::kChecksums, /*unread=*/{"optimizer.safetensors", "run.json"});
  } catch (const Error& error) {
    fail(error.code(),
         "model.from: {}; name another checkpoint or bring this one anew (if it was changed on purpose, remove "
         "{}/manifest.json)",
         error.message(), folder);
  }
}

void check_vocabulary(const std::string& folder, const std::string& prefix, const DatasetInfo& data) {
  const auto own = tokenizer_of(folder);
  if (own == nullptr || own->fingerprint() == data.tokenizer_fingerprint) return;
  const auto other = tokenizer_of(data);
  int64_t different = other == nullptr ? data.vocab_size : 0;
  std::string first;
  for (int64_t i = 0; other != nullptr && i < std::min(own->vocab_size(), other->vocab_size()); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view here = own->token_bytes(id), there = other->token_bytes(id);
    if (here.empty() || there.empty() || here == there) continue;  // unused in one of them
    if (different++ == 0)
      first = fmt::format("; id {} is {} in the folder, {} in the data", id, json_quote(here), json_quote(there));
  }
  if (different == 0) {
    log_warning(
        "data {} was made with the tokenizer {}, model.from {} has {}: the ids both know mean the same, texts may be "
        "split otherwise",
        prefix, data.tokenizer_fingerprint, folder, own->fingerprint());
    return;
  }
  fail(ErrorCode::kInvalidArgument,
       "data {} was made with the tokenizer {}, model.from {} has {}: its weights know other ids{}{}; make the data "
       "anew "
       "with `octet data TEXT --tokenizer {} --out PREFIX`",
       prefix, data.tokenizer_fingerprint, folder, own->fingerprint(), first,
       other == nullptr ? fmt::format(" (and {}, to compare ids by, is gone or changed)", data.tokenizer_path)
                        : fmt::format(" ({} of {} differ)", different, other->vocab_size()),
       folder);
}

}  // namespace octet
