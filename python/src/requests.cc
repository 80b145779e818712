#include "requests.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "convert.h"
#include "io/sequence_template.h"
#include "serve/encoding_job.h"
#include "serve/guided.h"
#include "serve/token_rules.h"

namespace octet::python {
namespace {

using Json = nlohmann::ordered_json;

enum class For : uint8_t { kBoth, kGenerate, kChat };
struct Row {
  const char *name, *type, *meaning;
  For of = For::kBoth;
};
// What stays None is as the model's generation_config.json says, else as octet serve has it.
constexpr Row kRows[] = {
    {"max_tokens", "int", "at most so many tokens (generate: 256, chat: what the context has room for)"},
    {"min_tokens", "int", "no end before so many"},
    {"temperature", "float", "0 is greedy"},
    {"top_p", "float", "sample from the likeliest tokens of this total probability"},
    {"top_k", "int", "sample from the k likeliest tokens; 0: all"},
    {"min_p", "float", "drop tokens below this fraction of the largest probability"},
    {"seed", "int", "same seed, same text"},
    {"n", "int", "texts of the prompt"},
    {"stop", "str | Sequence[str]", "strings that end the text and are no part of it"},
    {"stop_token_ids", "Sequence[int]", "tokens that end the text and are no part of it"},
    {"include_stop_str_in_output", "bool", "the stop string is part of the text"},
    {"ignore_eos", "bool", "the end token does not end the text"},
    {"logprobs", "int", "log-probabilities of each token and of the k likeliest, k at most 20"},
    {"prompt_logprobs", "int", "the same of the prompt's tokens"},
    {"presence_penalty", "float", "subtracted from logits of tokens of the text"},
    {"frequency_penalty", "float", "the same for each time that a token has come"},
    {"repetition_penalty", "float", "divides logits of tokens of prompt and text"},
    {"logit_bias", "Mapping[int, float]", "added to logits, -100 to 100"},
    {"allowed_token_ids", "Sequence[int]", "no other tokens"},
    {"bad_words", "Sequence[str]", "words that do not come"},
    {"beams", "int", "beam search of this width, whose n best texts are given"},
    {"length_penalty", "float", "of beams: scores are divided by length to this power"},
    {"early_stopping", "bool | str", "of beams: True, False or \"never\", as in transformers"},
    {"schema", "Mapping[str, Any] | str", "a JSON schema that the text fits"},
    {"structured_outputs", "Mapping[str, Any]", "what guides the text: json, regex, choice, grammar or json_object"},
    {"response_format", "Mapping[str, Any]", "the same in OpenAI's form"},
    {"adapter", "str", "an adapter of the engine by its name (default: the model without one)"},
    {"draft_tokens", "int", "of an engine with a draft: at most so many guessed in a step"},
    {"skip_special_tokens", "bool", "False: special tokens are written"},
    {"parse_special", "bool", "False: special tokens in the prompt's text are text", For::kGenerate},
    {"add_special_tokens", "bool", "False: no begin token is put in front", For::kGenerate},
    {"truncate_prompt_tokens", "int", "keep the prompt's last tokens, at most so many; -1: what fits"},
    {"priority", "int", "higher runs first"},
    {"cache_salt", "str", "cached prefixes are shared with requests of the same salt only"},
    {"timeout", "float", "seconds from submission after which the text ends"},
    {"mask", "Callable[[int, list[int], memoryview], Iterable[int] | None]",
     "called before each token with the text's index, its tokens and the allowed ones, 32 bits a word: clears bits "
     "there, or returns the ids that are allowed"},
    {"tools", "Sequence[Mapping[str, Any]]", "functions that may be called, in OpenAI's form", For::kChat},
    {"tool_choice", "str | Mapping[str, Any]", "none, auto, required or a function", For::kChat},
    {"parallel_tool_calls", "bool", "False: at most one call", For::kChat},
    {"chat_template", "str", "a Jinja text instead of the model's", For::kChat},
    {"chat_template_kwargs", "Mapping[str, Any]", "variables of the template", For::kChat},
    {"add_generation_prompt", "bool", "False: no new message is begun", For::kChat},
    {"continue_final_message", "bool", "True: the last message goes on", For::kChat},
};

bool fits(const Row& row, bool chat) { return row.of == For::kBoth || (row.of == For::kChat) == chat; }

// Throws for a name that is none of the rows'.
void check_names(const nb::dict& options, bool chat) {
  std::vector<std::string> names;
  for (const Row& row : kRows)
    if (fits(row, chat)) names.emplace_back(row.name);
  for (const auto& [key, value] : options) {
    const std::string name = text_of(key);
    if (std::ranges::find(names, name) == names.end())
      fail(ErrorCode::kInvalidArgument, "unknown option '{}'{}", name, if_near(name, names, " (nearest: {})"));
  }
}

// A callable of Python, called and let go with the GIL, from any thread.
class PyMask {
 public:
  explicit PyMask(nb::object callable)
      : callable_(new nb::object(std::move(callable)), [](nb::object* object) {
          if (ended()) return;
          const nb::gil_scoped_acquire gil;
          delete object;
        }) {}

  void operator()(int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed) const {
    check(!ended(), ErrorCode::kUnsupported, "mask: the interpreter has ended");
    const nb::gil_scoped_acquire gil;
    const InCallback guard;
    try {
      nb::list ids;
      for (const int32_t id : generated) ids.append(id);
      // A copy, which the callable may keep.
      const nb::object bytes = nb::steal(
          PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(allowed.data()), std::ssize(allowed) * 4));
      if (!bytes.is_valid()) throw nb::python_error();
      const nb::object view = nb::steal(PyMemoryView_FromObject(bytes.ptr())).attr("cast")("I");
      const nb::object result = (*callable_)(sample, ids, view);
      if (result.is_none()) {
        std::memcpy(allowed.data(), PyByteArray_AsString(bytes.ptr()), allowed.size_bytes());
      } else {
        std::vector<uint32_t> bits(allowed.size());
        for (const int32_t id : ids_of(result, "mask")) {
          check(id >= 0 && static_cast<size_t>(id) / 32 < bits.size(), ErrorCode::kInvalidArgument,
                "it returned token {} (want 0 to {})", id, bits.size() * 32 - 1);
          bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
        }
        for (size_t i = 0; i < bits.size(); ++i) allowed[i] &= bits[i];
      }
    } catch (const nb::python_error& error) {
      fail(ErrorCode::kInvalidArgument, "mask: {}: {}", nb::cast<std::string>(error.type().attr("__name__")),
           nb::cast<std::string>(nb::str(error.value())));
    } catch (const Error& error) {
      fail(ErrorCode::kInvalidArgument, "mask: {}", error.message());
    }
    check(std::ranges::any_of(allowed, [](uint32_t word) { return word != 0; }), ErrorCode::kInvalidArgument,
          "mask: it left no token");
  }

 private:
  std::shared_ptr<nb::object> callable_;
};

// Options of Python's own, taken out of the dict, and others in the server's words.
struct Own {
  nb::object mask = nb::none();
  std::string adapter;
  double timeout = 0;
};
Own take_own(nb::dict& options, bool chat) {
  Own own;
  const auto pop = [&](const char* name) -> nb::object { return options.attr("pop")(name, nb::none()); };
  own.mask = pop("mask");
  check(own.mask.is_none() || PyCallable_Check(own.mask.ptr()), ErrorCode::kInvalidArgument,
        "mask is no callable (want one of the text's index, its tokens and the allowed ones)");
  if (const nb::object adapter = pop("adapter"); !adapter.is_none()) own.adapter = text_of(adapter);
  if (const nb::object timeout = pop("timeout"); !timeout.is_none()) {
    own.timeout = PyFloat_AsDouble(timeout.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    check(own.timeout > 0, ErrorCode::kInvalidArgument, "timeout: {} (want > 0)", own.timeout);
  }
  if (const nb::object beams = pop("beams"); !beams.is_none()) {
    if (nb::cast<bool>(nb::object(beams.attr("__gt__")(0)))) options["use_beam_search"] = true;
    options["best_of"] = beams;
  }
  if (const nb::object schema = pop("schema"); !schema.is_none()) {
    nb::dict guide;
    if (chat) {
      nb::dict named;
      named["schema"] = schema, guide["type"] = "json_schema", guide["json_schema"] = named;
    } else {
      guide["json"] = schema;
    }
    const char* field = chat ? "response_format" : "structured_outputs";
    check(!options.contains(field), ErrorCode::kInvalidArgument, "schema and {}: want one of them", field);
    options[field] = guide;
  }
  return own;
}

// What fields of text need; `fields` that mean it are refused by name.
void check_tokenizer(const Opened& opened, const Json& body, bool text) {
  if (opened.tokenizer != nullptr) return;
  check(!text, ErrorCode::kInvalidArgument, "{} has no tokenizer: give token ids, or tokenizer= to the engine",
        opened.folder);
  for (const char* name : {"stop", "bad_words", "structured_outputs", "response_format"})
    check(!body.contains(name) || body[name].is_null(), ErrorCode::kInvalidArgument,
          "{}: {} has no tokenizer (give tokenizer= to the engine)", name, opened.folder);
}

std::vector<int32_t> read_prompt(const Opened& opened, nb::handle prompt, serve::Fields& fields, const Json& body,
                                 std::string& text) {
  nb::object given = nb::borrow(prompt);
  if (nb::isinstance<nb::dict>(given)) {
    const auto dict = nb::borrow<nb::dict>(given);
    for (const auto& [key, value] : dict)
      check(text_of(key) == "prompt" || text_of(key) == "prompt_token_ids", ErrorCode::kInvalidArgument,
            "a prompt has '{}' (want prompt or prompt_token_ids)", text_of(key));
    const char* key = dict.contains("prompt_token_ids") ? "prompt_token_ids" : "prompt";
    check(dict.contains(key), ErrorCode::kInvalidArgument, "a prompt is empty (want prompt or prompt_token_ids)");
    given = dict[key];
  }
  const int64_t kept = serve::read_kept(fields, opened.model);
  const bool special = fields.flag("add_special_tokens").value_or(true);
  if (nb::isinstance<nb::str>(given)) {
    check_tokenizer(opened, body, true);
    text = text_of(given);
    const nb::gil_scoped_release release;
    return serve::encode_prompt(fields, text, special, opened.model, kept);
  }
  fields.ignore("parse_special");
  if (!PySequence_Check(given.ptr()) || nb::isinstance<nb::bytes>(given))
    fail(ErrorCode::kInvalidArgument, "a prompt is {} (want a string or token ids)",
         nb::cast<std::string>(nb::repr(given)).substr(0, 60));
  std::vector<int32_t> ids = ids_of(given, "a prompt");
  if (kept > 0 && std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
  return ids;
}

void check_generates(const Opened& opened) {
  check(opened.engine->encoder() == nullptr, ErrorCode::kInvalidArgument,
        "{} is an encoder and generates no text: use embed() or score()", opened.folder);
}

const EncoderFacts& check_encodes(const Opened& opened) {
  check(opened.engine->encoder() != nullptr, ErrorCode::kInvalidArgument,
        "{} is opened for generation: embed() and score() want an encoder, or octet.Engine(..., task=\"embed\")",
        opened.folder);
  check(opened.tokenizer != nullptr, ErrorCode::kInvalidArgument, "{} has no tokenizer (give tokenizer= to the engine)",
        opened.folder);
  return *opened.engine->encoder();
}

void check_known(const serve::Fields& fields) {
  const std::vector<std::string> unknown = fields.unknown();
  check(unknown.empty(), ErrorCode::kInvalidArgument, "{} is not used here", unknown.empty() ? "" : unknown[0]);
}

Json checked(const nb::dict& options, std::initializer_list<const char*> names) {
  const std::vector<std::string> known(names.begin(), names.end());
  for (const auto& [key, value] : options)
    check(std::ranges::find(known, text_of(key)) != known.end(), ErrorCode::kInvalidArgument, "unknown option '{}'{}",
          text_of(key), if_near(text_of(key), known, " (nearest: {})"));
  return to_json(options, "octet.Engine");
}

}  // namespace

Task make_task(const Opened& opened, nb::handle prompt, const nb::dict& given, bool chat) {
  check_generates(opened);
  check_names(given, chat);
  auto options = nb::cast<nb::dict>(given.attr("copy")());
  const Own own = take_own(options, chat);
  Json body = to_json(options, "an option");
  if (chat) body["messages"] = to_json(prompt, "messages");
  check_tokenizer(opened, body, chat);
  serve::Fields fields(body);
  Task task;
  GenerationRequest& request = task.request;
  const serve::TextGuide guide = serve::read_generation(fields, opened.model, "", request);
  Group& group = *task.group;
  group.logprobs = request.logprobs = fields.integer("logprobs", 0, 20).value_or(-1);
  request.prompt_logprobs = fields.integer("prompt_logprobs", 0, 20).value_or(-1);
  group.scored = request.prompt_logprobs >= 0;
  const std::optional<int64_t> most = serve::read_max_tokens(fields, chat ? 1 : 0);
  if (chat) {
    const serve::ChatInput input = serve::read_chat_input(fields, opened.model);
    check_known(fields);
    const nb::gil_scoped_release release;
    task.form = serve::prepare_turn(input, opened.model, "", most, guide, request);
    check(task.form->ignored.empty(), ErrorCode::kInvalidArgument, "{}: the chat template does not name it",
          task.form->ignored.empty() ? "" : task.form->ignored[0]);
    for (int64_t i = 0; i < request.n; ++i) task.parsers.push_back(task.form->parser());
    task.open_calls.resize(static_cast<size_t>(request.n));
  } else {
    request.prompt_ids = read_prompt(opened, prompt, fields, body, group.prompt);
    check_known(fields);
    request.max_tokens = most.value_or(256);
    serve::set_guide(guide, opened.model, request);
  }
  std::vector<GenerationRequest> one = {std::move(request)};
  serve::restrict_tokens(body, opened.model, one);
  request = std::move(one[0]);
  if (!own.mask.is_none()) {
    request.mask = [mine = PyMask(own.mask), mask = std::move(request.mask)](
                       int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
      if (mask) mask(sample, generated, allowed);
      mine(sample, generated, allowed);
    };
    request.fits = nullptr;
  }
  request.timeout_seconds = own.timeout;
  request.adapter = own.adapter;
  group.prompt_ids = request.prompt_ids;
  group.chat = chat, group.beams = request.beams > 0;
  group.texts.resize(static_cast<size_t>(request.n));
  group.eos_id = opened.tokenizer ? opened.tokenizer->eos_id() : -1;
  if (opened.model.reply_format == "mistral") group.call_prefix.clear();
  return task;
}

bool is_batch(nb::handle prompt, bool chat) {
  if (nb::isinstance<nb::str>(prompt) || nb::isinstance<nb::dict>(prompt)) return false;
  const bool listed = nb::isinstance<nb::list>(prompt) || nb::isinstance<nb::tuple>(prompt);
  if (!listed) return false;
  if (nb::len(prompt) == 0) return !chat;
  const nb::object first = prompt[0];
  return chat ? nb::isinstance<nb::list>(first) || nb::isinstance<nb::tuple>(first) : !is_whole(first);
}

std::string request_signature(bool chat) {
  std::string text = ", *";
  for (const Row& row : kRows)
    if (fits(row, chat)) text += fmt::format(", {}: {} | None = None", row.name, row.type);
  return text;
}

std::string request_doc(bool chat) {
  std::string text;
  for (const Row& row : kRows)
    if (fits(row, chat)) text += fmt::format("    {}: {}\n", row.name, row.meaning);
  return text;
}

std::vector<GenerationRequest> embedding_requests(const Opened& opened, const nb::list& inputs,
                                                  const nb::dict& options) {
  const EncoderFacts& facts = check_encodes(opened);
  check(!facts.classifies, ErrorCode::kInvalidArgument, "{} is a classifier and has no embeddings: use score()",
        opened.folder);
  const Json body = checked(options, {"dimensions", "normalize", "prompt_name", "truncate_prompt_tokens"});
  serve::Fields fields(body);
  const serve::InputReader reader(fields, opened.model);
  const int64_t dimensions = fields.integer("dimensions", 1, facts.width).value_or(0);
  const std::optional<bool> normalize = fields.flag("normalize");
  const std::optional<std::string> name = fields.text("prompt_name");
  const auto found = facts.prompts.find(name.value_or(facts.default_prompt));
  if (name && found == facts.prompts.end()) {
    std::string known;
    for (const auto& [one, text] : facts.prompts) known += (known.empty() ? "" : ", ") + one;
    fields.fail("prompt_name", fmt::format("the model has no prompt of this name (it has: {})", known));
  }
  const std::string before = found != facts.prompts.end() ? found->second : "";
  std::vector<GenerationRequest> requests;
  for (const nb::handle input : inputs) {
    const bool text = nb::isinstance<nb::str>(input);
    requests.push_back(text ? reader.text(text_of(input).empty() ? "" : before + text_of(input))
                            : reader.ids(Json(ids_of(input, "an input"))));
    requests.back().dimensions = dimensions, requests.back().normalize = normalize;
    if (text && !facts.include_prompt) requests.back().left_out = prompt_tokens(*opened.tokenizer, before);
  }
  return requests;
}

Pairs score_requests(const Opened& opened, const nb::list& left, const nb::list& right, const nb::dict& options) {
  const EncoderFacts& facts = check_encodes(opened);
  check(!facts.classifies || facts.width == 1, ErrorCode::kInvalidArgument,
        "{} has {} classes: only a classifier of one class gives scores", opened.folder, facts.width);
  const Json body = checked(options, {"truncate_prompt_tokens"});
  serve::Fields fields(body);
  const serve::InputReader reader(fields, opened.model);
  Pairs pairs{.left = nb::len(left), .right = nb::len(right), .crossed = facts.classifies};
  check(pairs.left == 1 || pairs.left == pairs.right, ErrorCode::kInvalidArgument,
        "score: {} left texts for {} right ones (want one, or as many)", pairs.left, pairs.right);
  if (pairs.crossed) {
    for (size_t i = 0; i < pairs.right; ++i)
      pairs.requests.push_back(reader.text(text_of(left[pairs.left == 1 ? 0 : i]), text_of(right[i])));
    return pairs;
  }
  for (const nb::list& list : {left, right}) {
    for (const nb::handle text : list) {
      pairs.requests.push_back(reader.text(text_of(text)));
      pairs.requests.back().normalize = true;
    }
  }
  return pairs;
}

std::vector<float> Pairs::scores(const std::vector<std::vector<float>>& values) const {
  std::vector<float> all(right);
  for (size_t i = 0; i < right; ++i) {
    if (crossed) {
      all[i] = values[i].at(0);
      continue;
    }
    const std::vector<float>&a = values[left == 1 ? 0 : i], &b = values[left + i];
    all[i] = static_cast<float>(std::inner_product(a.begin(), a.end(), b.begin(), 0.0));
  }
  return all;
}

}  // namespace octet::python
