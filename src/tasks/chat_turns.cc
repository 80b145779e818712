// Few shots and questions as turns of a chat, by the model's own template.
#include <chrono>

#include "base/error.h"
#include "io/chat_template_file.h"
#include "tasks/python_text.h"
#include "tasks/task_evaluation.h"

namespace octet {

using nlohmann::ordered_json;

RenderTurns chat_turns(const std::string& folder) {
  std::string path;
  const std::string source = find_chat_template(folder, "default", path);
  check(!source.empty(), ErrorCode::kNotFound, "{}: no chat template (chat_template.jinja, or chat_template in {})",
        folder, path);
  const auto shared = std::make_shared<const ChatTemplate>(source, path);
  const auto trusted = std::make_shared<const ordered_json>(read_token_texts(folder));
  return [shared, trusted](const ordered_json& messages, bool open) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto render = [&](const ordered_json& turns) {
      const ordered_json bindings = {{"messages", messages_for_template(turns, shared->message_form())},
                                     {"add_generation_prompt", open}};
      return shared->render(bindings, *trusted, std::chrono::duration<double>(now).count()).text;
    };
    std::string text;
    try {
      text = render(messages);
    } catch (const Error&) {  // a template without a system role raises
      ordered_json others = ordered_json::array();
      for (const ordered_json& message : messages)
        if (message["role"] != "system") others.push_back(message);
      if (others.size() == messages.size()) throw;
      text = render(others);
    }
    if (open) return text;
    // The last turn goes on: what the template writes behind its text is cut off, as transformers does.
    const auto& last = messages.back()["content"].get_ref<const std::string&>();
    const std::string core(strip(last));
    const size_t at = text.rfind(core);
    check(at != std::string::npos, ErrorCode::kInvalidArgument,
          "the chat template does not write the answer's beginning '{}', so the turn cannot go on behind it", last);
    const std::string from_core = last.substr(last.find(core));  // with the white space behind it
    return text.substr(0, at + (text.compare(at, from_core.size(), from_core) == 0 ? from_core.size() : core.size()));
  };
}

}  // namespace octet
