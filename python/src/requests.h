// Keyword arguments of generate(), chat() and their kin as requests of the engine. They are the fields of the server's
// requests, read by the same code, and a few of Python's own.
#pragma once

#include <string>
#include <vector>

#include "generation.h"
#include "opened.h"

namespace octet::python {

// The prompt: str, a sequence of token ids, or {"prompt": str} or {"prompt_token_ids": ids}; of a chat its messages.
Task make_task(const Opened& opened, nb::handle prompt, const nb::dict& options, bool chat);
bool is_batch(nb::handle prompt, bool chat);  // a list of prompts, of conversations

// "max_tokens: int | None = None, ..." of methods, and their docs.
std::string request_signature(bool chat);
std::string request_doc(bool chat);

std::vector<GenerationRequest> embedding_requests(const Opened& opened, const nb::list& inputs,
                                                  const nb::dict& options);
// Scores of pairs; one left text stands for all.
struct Pairs {
  std::vector<GenerationRequest> requests = {};
  size_t left = 0, right = 0;
  bool crossed = false;  // the requests are pairs, else left texts and right ones
  std::vector<float> scores(const std::vector<std::vector<float>>& values) const;
};
Pairs score_requests(const Opened& opened, const nb::list& left, const nb::list& right, const nb::dict& options);

}  // namespace octet::python
