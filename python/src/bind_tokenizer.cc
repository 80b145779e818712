// octet.Tokenizer: a vocabulary and the chat template beside it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "bindings.h"
#include "convert.h"
#include "octet/commands.h"
#include "serve/chat_core.h"

namespace octet::python {
namespace {

class PyTokenizer {
 public:
  explicit PyTokenizer(nb::handle path) {
    const std::string given = path_of(path);
    const std::string folder = is_folder(given) ? model_folder(given) : given;
    const nb::gil_scoped_release release;
    tokenizer_ = load_tokenizer(folder);
    model_.tokenizer = tokenizer_.get(), model_.names = {folder};
    model_.request_templates = std::make_shared<serve::TemplateCache>();
    if (is_folder(folder)) serve::read_chat(folder, "", model_);
  }

  nb::object encode(nb::object text, bool add_special_tokens, bool parse_special) const {
    const EncodeOptions options{.parse_special = parse_special,
                                .add_bos = add_special_tokens && tokenizer_->adds_bos()};
    if (nb::isinstance<nb::str>(text)) return nb::cast(encode_one(text_of(text), options));
    std::vector<std::string> texts;
    for (const nb::handle one : text) texts.push_back(text_of(one));
    std::vector<std::vector<int32_t>> all(texts.size());
    {
      const nb::gil_scoped_release release;
      for (size_t i = 0; i < texts.size(); ++i) all[i] = tokenizer_->encode(texts[i], options);
    }
    return nb::cast(all);
  }

  nb::object decode(nb::object ids, bool skip_special_tokens) const {
    const std::string bytes = tokenizer_->decode(ids_of(ids, "ids"), skip_special_tokens);
    nb::object text = nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
    if (!text.is_valid()) throw nb::python_error();
    return text;
  }

  nb::object chat(nb::object messages, nb::object tools, bool generation_prompt, bool continue_final,
                  nb::object own_template, bool tokenize, nb::dict settings) const {
    serve::ChatInput input{.messages = to_json(messages, "messages"),
                           .settings = to_json(settings, "a variable of the template"),
                           .generation_prompt = generation_prompt && !continue_final,
                           .continue_final = continue_final};
    if (!tools.is_none()) input.tools = to_json(tools, "tools");
    if (!own_template.is_none()) input.own_template = model_.request_templates->get(text_of(own_template));
    serve::check_messages(input.messages, "messages");
    check(input.tools.is_array(), ErrorCode::kInvalidArgument, "tools: want a list of tools");
    const serve::ChatPrompt prompt = [&] {
      const nb::gil_scoped_release release;
      return render(input, model_, std::numeric_limits<int32_t>::max());
    }();
    check(prompt.ignored.empty(), ErrorCode::kInvalidArgument, "{}: the chat template does not name it",
          prompt.ignored.empty() ? "" : prompt.ignored[0]);
    return tokenize ? nb::object(nb::cast(prompt.ids)) : nb::object(nb::cast(prompt.text));
  }

  const Tokenizer& get() const { return *tokenizer_; }
  bool has_chat() const { return model_.chat != nullptr; }

 private:
  std::vector<int32_t> encode_one(const std::string& text, const EncodeOptions& options) const {
    const nb::gil_scoped_release release;
    return tokenizer_->encode(text, options);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  serve::ApiModel model_;
};

nb::object id_or_none(int32_t id) {
  if (id < 0) return nb::none();
  return nb::int_(id);
}

}  // namespace

void bind_tokenizer(nb::module_& module) {
  nb::class_<PyTokenizer>(module, "Tokenizer",
                          "The vocabulary of a model: its folder, a run, or a tokenizer's file or folder.")
      .def(
          "__init__", [](PyTokenizer* self, nb::object path) { new (self) PyTokenizer(path); },
          nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
      .def("encode", &PyTokenizer::encode, nb::arg("text"), nb::kw_only(), nb::arg("add_special_tokens") = true,
           nb::arg("parse_special") = false,
           nb::sig("def encode(self, text: str | Sequence[str], *, add_special_tokens: bool = True, parse_special: "
                   "bool = False) -> Any"),
           "Token ids of a text, or lists of them for several; parse_special: special tokens that the text spells "
           "are those tokens.")
      .def("decode", &PyTokenizer::decode, nb::arg("ids"), nb::kw_only(), nb::arg("skip_special_tokens") = false,
           nb::sig("def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str"))
      .def(
          "token_bytes",
          [](const PyTokenizer& self, int32_t id) {
            const std::string_view bytes = self.get().token_bytes(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("id"), "what a token stands for")
      .def(
          "chat_prompt", &PyTokenizer::chat, nb::arg("messages"), nb::arg("tools").none() = nb::none(), nb::kw_only(),
          nb::arg("add_generation_prompt") = true, nb::arg("continue_final_message") = false,
          nb::arg("chat_template").none() = nb::none(), nb::arg("tokenize") = true, nb::arg("settings") = nb::dict(),
          nb::sig("def chat_prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | "
                  "None = None, *, add_generation_prompt: bool = True, continue_final_message: bool = False, "
                  "chat_template: str | None = None, tokenize: bool = True, settings: Mapping[str, Any] = ...) -> Any"),
          "Messages as the chat template writes them: token ids, or with tokenize=False text.")
      .def_prop_ro("vocab_size", [](const PyTokenizer& self) { return self.get().vocab_size(); })
      .def_prop_ro("kind", [](const PyTokenizer& self) { return self.get().kind(); })
      .def_prop_ro("has_chat_template", &PyTokenizer::has_chat)
      .def_prop_ro(
          "bos_token_id", [](const PyTokenizer& self) { return id_or_none(self.get().bos_id()); },
          nb::sig("def bos_token_id(self) -> int | None"))
      .def_prop_ro(
          "eos_token_id", [](const PyTokenizer& self) { return id_or_none(self.get().eos_id()); },
          nb::sig("def eos_token_id(self) -> int | None"))
      .def("__len__", [](const PyTokenizer& self) { return self.get().vocab_size(); });
}

}  // namespace octet::python
