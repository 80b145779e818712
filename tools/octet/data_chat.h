// octet data --chat: conversations instead of texts.
#pragma once

#include <CLI/CLI.hpp>

#include "chat/chat_corpus.h"

namespace octet {

struct ChatDataArguments {
  ChatCorpusOptions options;
  bool print = false;
  std::string too_long = "cut-right";
  bool wanted() const { return !options.chat_template.empty(); }
};

// Adds --chat, --print, --pairs, --sequence-length and --too-long.
void add_chat_data_options(CLI::App& command, ChatDataArguments& arguments);
// Refuses options of texts, by name. Fills in the options' own names.
void settle_chat_data(const CLI::App& command, ChatDataArguments& arguments, const PrepareOptions& options);
// What became of the conversations.
void report_chat_data(const ChatCounts& counts, const PrepareResult& result, const ChatDataArguments& arguments);

}  // namespace octet
