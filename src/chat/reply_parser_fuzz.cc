// libFuzzer: any bytes in any format, whole and in single bytes, give the same reply; calls begin and end in order.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "chat/reply_parser.h"

namespace {

using octet::ReplyEvent;

std::string joined(const octet::ReplyOptions& options, std::string_view text, size_t piece) {
  static const auto kTools = nlohmann::ordered_json::parse(
      R"([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}}])");
  const auto parser = octet::make_reply_parser(options, kTools);
  std::vector<ReplyEvent> events;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) parser->push(text.substr(0, piece), events);
  parser->finish(events);
  std::string parts[4];
  bool open = false;
  for (const ReplyEvent& event : events) {
    const bool begins = event.kind == ReplyEvent::Kind::kCallBegin, ends = event.kind == ReplyEvent::Kind::kCallEnd;
    if ((begins && open) || (ends && !open)) std::abort();
    if (begins || ends) open = begins;
    parts[std::min(static_cast<int>(event.kind), 3)] += event.text;
  }
  if (open) std::abort();
  return parts[0] + '\0' + parts[1] + '\0' + parts[2] + '\0' + parts[3];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto& formats = octet::reply_formats();
  const octet::ReplyOptions options = {.format = formats[data[0] % formats.size()], .in_reasoning = data[0] >= 0x80};
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (joined(options, text, 1) != joined(options, text, size)) std::abort();
  return 0;
}
