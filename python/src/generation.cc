#include "generation.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "convert.h"
#include "errors.h"

namespace octet::python {
namespace {

nb::list ids_list(const std::vector<int32_t>& ids) {
  nb::list list;
  for (const int32_t id : ids) list.append(id);
  return list;
}

nb::list floats(const std::vector<TokenLogprob>& tokens) {
  nb::list list;
  for (const TokenLogprob& token : tokens) list.append(token.logprob);
  return list;
}

// A dict of each token's most likely ones, likeliest first.
nb::list dicts(const std::vector<std::vector<TokenLogprob>>& top) {
  nb::list list;
  for (const auto& tokens : top) {
    nb::dict dict;
    for (const TokenLogprob& token : tokens) dict[nb::int_(token.id)] = token.logprob;
    list.append(dict);
  }
  return list;
}

// The first token of a prompt has none.
nb::list behind_none(const nb::list& list) {
  nb::list all;
  all.append(nb::none());
  all.extend(list);
  return all;
}

nb::object finish_of(FinishReason reason) {
  if (reason == FinishReason::kNone) return nb::none();
  return nb::str(finish_reason_name(reason));
}

nb::object stop_of(const Text& text, int32_t eos_id) {
  if (!text.stop.empty()) return nb::str(text.stop.c_str());
  if (text.stop_id >= 0 && text.stop_id != eos_id) return nb::int_(text.stop_id);
  return nb::none();
}

nb::list calls_of(const Text& text) {
  nb::list list;
  for (const ToolCall& call : text.calls) {
    nb::dict function, one;
    function["name"] = call.name.c_str(), function["arguments"] = nb::str(call.arguments.data(), call.arguments.size());
    one["id"] = call.id.c_str(), one["type"] = "function", one["function"] = function;
    list.append(one);
  }
  return list;
}

// As OpenAI's assistant message, which may be the next request's.
nb::dict message_of(const Text& text) {
  nb::dict message;
  message["role"] = "assistant";
  message["content"] = text.text.empty() && !text.calls.empty() ? nb::object(nb::none()) : nb::cast(text.text);
  if (!text.reasoning.empty()) message["reasoning_content"] = nb::cast(text.reasoning);
  if (!text.calls.empty()) message["tool_calls"] = calls_of(text);
  return message;
}

nb::dict times_of(const RequestTimes& times) {
  nb::dict dict;
  dict["scheduled"] = times.scheduled, dict["first_token"] = times.first_token, dict["last_token"] = times.last_token;
  dict["prompt_tokens"] = times.prompt_tokens, dict["cached_tokens"] = times.cached_tokens;
  dict["generated_tokens"] = times.generated_tokens, dict["preemptions"] = times.preemptions;
  return dict;
}

nb::dict dict_of(const Generation& generation, const char* const* names) {
  nb::dict dict;
  const nb::object self = nb::cast(generation);
  for (; *names != nullptr; ++names) dict[*names] = self.attr(*names);
  return dict;
}

constexpr const char* kMembers[] = {
    "index", "text",      "ids",        "logprobs", "top_logprobs", "finish_reason",   "stop_reason",
    "score", "reasoning", "tool_calls", "prompt",   "prompt_ids",   "prompt_logprobs", "prompt_top_logprobs",
    "times", nullptr};

void append(Text& to, Text from) {
  to.text += from.text, to.reasoning += from.reasoning;
  std::ranges::move(from.calls, std::back_inserter(to.calls));
  std::ranges::move(from.ids, std::back_inserter(to.ids));
  std::ranges::move(from.logprobs, std::back_inserter(to.logprobs));
  std::ranges::move(from.top, std::back_inserter(to.top));
  to.score = from.score, to.finished = from.finished, to.stop = std::move(from.stop), to.stop_id = from.stop_id;
}

// What the reply's events add; a call is given when it is whole.
void read_reply(const std::vector<ReplyEvent>& events, const std::string& prefix, ToolCall& open, Text& more) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kText: more.text += event.text; break;
      case ReplyEvent::Kind::kReasoning: more.reasoning += event.text; break;
      case ReplyEvent::Kind::kCallBegin: open = {.id = prefix, .name = event.text, .arguments = {}}; break;
      case ReplyEvent::Kind::kArguments: open.arguments += event.text; break;
      case ReplyEvent::Kind::kCallEnd:
        open.id = open.id.empty() ? serve::make_id("").substr(0, 9) : serve::make_id(open.id);
        more.calls.push_back(std::exchange(open, {}));
        break;
    }
  }
}

}  // namespace

Text take(Task& task, const GenerationEvent& event, const std::string& where) {
  if (event.finished == FinishReason::kError) throw_event(event, where);
  Group& group = *task.group;
  const auto index = static_cast<size_t>(event.sample);
  Text more{.ids = event.ids,
            .logprobs = event.logprobs,
            .top = event.top,
            .score = event.score,
            .finished = event.finished,
            .stop = event.stop,
            .stop_id = event.stop_id};
  Text& text = group.texts.at(index);
  if (task.form) {
    std::vector<ReplyEvent> events;
    task.parsers[index]->push(event.text, events);
    if (event.finished != FinishReason::kNone) task.parsers[index]->finish(events);
    read_reply(events, group.call_prefix, task.open_calls[index], more);
  } else {
    more.text = event.text;
  }
  append(text, more);
  std::ranges::copy(event.prompt_logprobs, std::back_inserter(group.prompt_logprobs));
  std::ranges::copy(event.prompt_top, std::back_inserter(group.prompt_top));
  return more;
}

void bind_generation(nb::module_& module) {
  using nb::sig;
  nb::class_<Generation>(
      module, "Generation",
      "A text, and what is known of it. Of a request for several texts the first; `samples` are all.")
      .def_prop_ro(
          "index", [](const Generation& g) { return g.index; }, "its place among the request's texts")
      .def_prop_ro(
          "text", [](const Generation& g) { return nb::cast(g.text().text); }, sig("def text(self) -> str"),
          "the text; of a chat the answer without reasoning and calls")
      .def_prop_ro(
          "ids", [](const Generation& g) { return ids_list(g.text().ids); }, sig("def ids(self) -> list[int]"),
          "tokens of the text")
      .def_prop_ro(
          "logprobs",
          [](const Generation& g) -> nb::object {
            if (g.group->logprobs < 0) return nb::none();
            return floats(g.text().logprobs);
          },
          sig("def logprobs(self) -> list[float] | None"), "log-probability of each token, where asked for")
      .def_prop_ro(
          "top_logprobs",
          [](const Generation& g) -> nb::object {
            if (g.group->logprobs < 0) return nb::none();
            return dicts(g.text().top);
          },
          sig("def top_logprobs(self) -> list[dict[int, float]] | None"), "the likeliest tokens at each place")
      .def_prop_ro(
          "finish_reason", [](const Generation& g) { return finish_of(g.text().finished); },
          sig("def finish_reason(self) -> str | None"), "stop, length, context full, cancelled or timeout")
      .def_prop_ro(
          "stop_reason", [](const Generation& g) { return stop_of(g.text(), g.group->eos_id); },
          sig("def stop_reason(self) -> str | int | None"), "the stop string or stop token")
      .def_prop_ro(
          "score",
          [](const Generation& g) -> nb::object {
            if (!g.group->beams) return nb::none();
            return nb::float_(g.text().score);
          },
          sig("def score(self) -> float | None"), "of a beam search")
      .def_prop_ro(
          "reasoning", [](const Generation& g) { return nb::cast(g.text().reasoning); },
          sig("def reasoning(self) -> str"), "of a chat: the thoughts before the answer")
      .def_prop_ro(
          "tool_calls", [](const Generation& g) { return calls_of(g.text()); },
          sig("def tool_calls(self) -> list[dict[str, Any]]"), "of a chat, in OpenAI's form")
      .def_prop_ro(
          "message", [](const Generation& g) { return message_of(g.text()); },
          sig("def message(self) -> dict[str, Any]"), "the reply as a message of a chat")
      .def_prop_ro(
          "prompt",
          [](const Generation& g) -> nb::object {
            if (g.group->prompt.empty()) return nb::none();
            return nb::cast(g.group->prompt);
          },
          sig("def prompt(self) -> str | None"), "the prompt's text, where it was given as text")
      .def_prop_ro(
          "prompt_ids", [](const Generation& g) { return ids_list(g.group->prompt_ids); },
          sig("def prompt_ids(self) -> list[int]"))
      .def_prop_ro(
          "prompt_logprobs",
          [](const Generation& g) -> nb::object {
            if (!g.group->scored) return nb::none();
            return behind_none(floats(g.group->prompt_logprobs));
          },
          sig("def prompt_logprobs(self) -> list[float | None] | None"),
          "log-probability of each token of the prompt but the first, where asked for")
      .def_prop_ro(
          "prompt_top_logprobs",
          [](const Generation& g) -> nb::object {
            if (!g.group->scored) return nb::none();
            return behind_none(dicts(g.group->prompt_top));
          },
          sig("def prompt_top_logprobs(self) -> list[dict[int, float] | None] | None"))
      .def_prop_ro(
          "times", [](const Generation& g) { return times_of(g.group->times); },
          sig("def times(self) -> dict[str, float]"),
          "seconds since submission (scheduled, first_token, last_token), and counts of tokens")
      .def_prop_ro(
          "samples",
          [](const Generation& g) {
            nb::list list;
            for (size_t i = 0; i < g.group->texts.size(); ++i) list.append(nb::cast(Generation{g.group, i}));
            return list;
          },
          sig("def samples(self) -> list[Generation]"), "all texts of the request, of a beam search best first")
      .def(
          "to_dict", [](const Generation& g) { return dict_of(g, kMembers); },
          sig("def to_dict(self) -> dict[str, Any]"))
      .def(
          "__repr__",
          [](const Generation& g) {
            return nb::str("Generation(text={!r}, tokens={}, finish_reason={!r})")
                .attr("format")(g.text().text, g.text().ids.size(), finish_of(g.text().finished));
          },
          sig("def __repr__(self) -> str"));

  nb::class_<Event>(module, "Event", "What a stream adds to one of its texts.")
      .def_ro("index", &Event::index, "of the text, 0 to n - 1")
      .def_prop_ro(
          "text", [](const Event& e) { return nb::cast(e.more.text); }, sig("def text(self) -> str"),
          "whole characters")
      .def_prop_ro(
          "ids", [](const Event& e) { return ids_list(e.more.ids); }, sig("def ids(self) -> list[int]"))
      .def_prop_ro(
          "logprobs", [](const Event& e) { return floats(e.more.logprobs); }, sig("def logprobs(self) -> list[float]"),
          "of ids, where asked for")
      .def_prop_ro(
          "top_logprobs", [](const Event& e) { return dicts(e.more.top); },
          sig("def top_logprobs(self) -> list[dict[int, float]]"))
      .def_prop_ro(
          "finish_reason", [](const Event& e) { return finish_of(e.more.finished); },
          sig("def finish_reason(self) -> str | None"), "None while the text goes on")
      .def_prop_ro(
          "reasoning", [](const Event& e) { return nb::cast(e.more.reasoning); }, sig("def reasoning(self) -> str"))
      .def_prop_ro(
          "tool_calls", [](const Event& e) { return calls_of(e.more); },
          sig("def tool_calls(self) -> list[dict[str, Any]]"), "each once, when it is whole")
      .def(
          "__repr__",
          [](const Event& e) {
            return nb::str("Event(index={}, text={!r}, finish_reason={!r})")
                .attr("format")(e.index, e.more.text, finish_of(e.more.finished));
          },
          sig("def __repr__(self) -> str"));
}

}  // namespace octet::python
