// octet chat: a conversation with a model in a terminal. Prompts, reasoning and ends are those of octet serve.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "infer/sampler.h"
#include "numbers.h"
#include "octet/commands.h"
#include "octet/sampling_options.h"
#include "serve/chat_core.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kAnswerRoom = 256;  // tokens, or a quarter of the context, that history leaves for an answer
constexpr const char* kHelp =
    "/reset         forget the conversation, but not the system message\n"
    "/system TEXT   a new system message, and forget the conversation; without TEXT: none\n"
    "/exit          leave, as does Ctrl-D\n"
    "//TEXT         a message that begins with /\n"
    "Ctrl-C stops an answer.\n";

struct Options {
  std::string model, system, chat_template;
  EngineOptions engine = {.max_sequences = 1};
  GenerationRequest request;
  std::vector<std::string> logit_bias;
  std::optional<int64_t> max_tokens;
  int threads = 0;
  bool stats = false;
};

volatile std::sig_atomic_t g_stop = 0, g_at_prompt = 0;

void on_interrupt(int) {
  g_stop = 1;
  if (g_at_prompt != 0) (void)!write(STDERR_FILENO, "\n> ", 3);  // what was typed is gone
}

bool write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return std::ferror(stdout) == 0;
}

// Prints an answer as it comes; what was thought before it dimmed, and only to a terminal.
class Printer final : public serve::BlockWatch {
 public:
  explicit Printer(bool terminal) : terminal_(terminal) {}
  void on_begin(size_t, const serve::ReplyBlock& block) override {
    if (thinks(block) && terminal_) write_out("\x1b[2m");
  }
  void on_more(size_t, const serve::ReplyBlock& block, std::string_view text) override {
    if (!thinks(block) || terminal_) write_out(text);
  }
  void on_end(size_t, const serve::ReplyBlock& block) override {
    if (thinks(block) && terminal_) write_out("\x1b[0m\n");
  }

 private:
  static bool thinks(const serve::ReplyBlock& block) { return block.kind == serve::ReplyBlock::Kind::kReasoning; }
  bool terminal_;
};

class Conversation {
 public:
  Conversation(const serve::ApiModel& model, const Options& options)
      : model_(model), options_(options), terminal_(isatty(STDOUT_FILENO) != 0) {
    set_system(options.system);
  }

  void reset() { input_.messages.erase(input_.messages.begin() + first_turn(), input_.messages.end()); }
  void set_system(const std::string& text) {
    input_.messages = Json::array();
    if (!text.empty()) input_.messages.push_back({{"role", "system"}, {"content", text}});
  }

  // A turn: the message and its answer. A message that cannot be answered is not kept.
  void say(const std::string& text) {
    input_.messages.push_back({{"role", "user"}, {"content", text}});
    try {
      trim();
      answer();
    } catch (...) {
      input_.messages.erase(input_.messages.end() - 1);
      throw;
    }
  }

 private:
  ptrdiff_t first_turn() const { return !input_.messages.empty() && input_.messages[0]["role"] == "system" ? 1 : 0; }

  // Forgets the oldest turns where the context leaves no room for an answer.
  void trim() {
    const int64_t context = model_.engine->context();
    const int64_t wanted = std::min({kAnswerRoom, context / 4, options_.max_tokens.value_or(kAnswerRoom)});
    constexpr int64_t kAny = 1 << 30;
    int64_t forgotten = 0;
    while (std::ssize(serve::render(input_, model_, kAny).ids) + wanted > context) {
      const ptrdiff_t first = first_turn();
      ptrdiff_t next = first + 1;  // the next message of the user
      while (next < std::ssize(input_.messages) && input_.messages[static_cast<size_t>(next)]["role"] != "user") ++next;
      if (next >= std::ssize(input_.messages)) break;
      input_.messages.erase(input_.messages.begin() + first, input_.messages.begin() + next);
      forgotten += next - first;
    }
    if (forgotten > 0)
      fmt::print(stderr, "[the context of {} tokens is full: the oldest {} messages are forgotten]\n", context,
                 forgotten);
  }

  void answer() {
    GenerationRequest request = options_.request;
    const serve::ReplyForm form = serve::prepare_turn(input_, model_, "", options_.max_tokens, {}, request);
    std::mutex mutex;
    std::condition_variable news;
    bool waiting = true;
    request.on_news = [&] {
      const std::lock_guard lock(mutex);
      waiting = false;
      news.notify_one();
    };
    Printer printer(terminal_);
    serve::ReplyBlocks blocks(form.parser());
    g_stop = 0;
    GenerationStream stream = model_.engine->submit(std::move(request));
    FinishReason finished = FinishReason::kNone;
    std::string error;
    bool cancelled = false;
    while (finished == FinishReason::kNone) {
      GenerationEvent event;
      if (!stream.try_next(event)) {
        std::unique_lock lock(mutex);
        news.wait_for(lock, std::chrono::milliseconds(20), [&] { return !waiting; });
        waiting = true;
        if (g_stop != 0 && !std::exchange(cancelled, true)) stream.cancel();
        continue;
      }
      finished = event.finished, error = event.error;
      blocks.push(event.text, finished != FinishReason::kNone, printer);
      if (g_stop != 0 && !std::exchange(cancelled, true)) stream.cancel();
    }
    write_out("\n");
    check(finished != FinishReason::kError, ErrorCode::kInvalidArgument, "{}", error);
    if (finished == FinishReason::kCancelled) fmt::print(stderr, "[stopped]\n");
    if (finished == FinishReason::kContext || (finished == FinishReason::kLength && !options_.max_tokens))
      fmt::print(stderr, "[cut off: the context of {} tokens is full]\n", model_.engine->context());
    keep(blocks);
    if (!options_.stats) return;
    const RequestTimes times = stream.times();
    fmt::print(stderr, "[{} prompt tokens, {} of them cached, first token after {:.2f} s; {} tokens at {:.1f} tok/s]\n",
               times.prompt_tokens, times.cached_tokens, times.first_token, times.generated_tokens,
               static_cast<double>(times.generated_tokens) / std::max(times.last_token - times.scheduled, 1e-9));
  }

  void keep(const serve::ReplyBlocks& blocks) {
    std::string text, thoughts;
    for (const serve::ReplyBlock& block : blocks.blocks())
      (block.kind == serve::ReplyBlock::Kind::kReasoning ? thoughts : text) += block.text;
    Json message = {{"role", "assistant"}, {"content", text}};
    if (!thoughts.empty()) message["reasoning_content"] = thoughts;
    input_.messages.push_back(std::move(message));
  }

  const serve::ApiModel& model_;
  const Options& options_;
  bool terminal_;
  serve::ChatInput input_;
};

// A line that begins with /; false: the conversation ends.
bool obey(const std::string& line, Conversation& conversation) {
  const std::string word = line.substr(0, line.find(' '));
  if (word == "/exit" || word == "/quit") return false;
  if (word == "/reset") {
    conversation.reset();
  } else if (word == "/system") {
    const size_t text = line.find_first_not_of(' ', word.size());
    conversation.set_system(text == std::string::npos ? "" : line.substr(text));
  } else {
    if (word != "/help") fmt::print(stderr, "no command {} (// begins a message with /)\n", word);
    fmt::print(stderr, "{}", kHelp);
  }
  return true;
}

// Sampling is what the folder says where no option does.
void read_sampling(const CLI::App& command, const std::string& folder, SamplingOptions& sampling) {
  SamplingOptions own = sampling;
  serve::read_generation_config(folder, own);
  const auto given = [&](const char* name) { return command.get_option(name)->count() > 0; };
  if (!given("--temperature")) sampling.temperature = own.temperature;
  if (!given("--top-k")) sampling.top_k = own.top_k;
  if (!given("--top-p")) sampling.top_p = own.top_p;
  if (!given("--min-p")) sampling.min_p = own.min_p;
  if (!given("--repetition-penalty")) sampling.repetition_penalty = own.repetition_penalty;
  if (!given("--seed"))
    sampling.seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

void run_chat(const CLI::App& command, Options& options) {
  set_thread_count(options.threads);
  parse_biases(options.logit_bias, options.request.sampling);
  validate(options.request.sampling);
  const std::string folder = resolve_models(options.model, options.engine);
  options.request.adapter = only_adapter(options.engine);
  const auto tokenizer =
      load_tokenizer(options.engine.tokenizer.empty() ? tokenizer_folder(folder) : options.engine.tokenizer);
  serve::ApiModel model;
  serve::read_chat(chat_folder(folder, options.engine), options.chat_template, model);
  check(model.chat != nullptr, ErrorCode::kInvalidArgument,
        "{} has no chat template: give one with --chat-template FILE, or continue texts with octet generate "
        "--interactive",
        folder);
  read_sampling(command, folder, options.request.sampling);
  const auto engine = Engine::open(folder, options.engine);
  if (engine == nullptr) return;  // another rank's process
  check(engine->encoder() == nullptr, ErrorCode::kInvalidArgument, "{} encodes texts and answers none: see octet embed",
        folder);
  model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = {folder};
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    fmt::print(stderr, "/help tells the commands, /exit or Ctrl-D leaves\n");
  }
  Conversation conversation(model, options);
  bool failed = false;
  for (std::string line;;) {
    g_at_prompt = terminal ? 1 : 0;  // before the prompt, behind which Ctrl-C may come at once
    if (terminal) fmt::print(stderr, "> ");
    const bool read = static_cast<bool>(std::getline(std::cin, line));
    g_at_prompt = 0;
    if (!read) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line.starts_with('/') && !line.starts_with("//")) {
      if (!obey(line, conversation)) break;
      continue;
    }
    const auto tell = [&failed](const char* what) {
      failed = true;
      fmt::print(stderr, "octet: {}\n", what);
    };
    try {
      conversation.say(line.starts_with("//") ? line.substr(1) : line);
    } catch (const serve::ApiError& error) {
      tell(error.what());
    } catch (const Error& error) {
      tell(error.what());
    }
    if (std::ferror(stdout) != 0) return;
  }
  if (terminal) fmt::print(stderr, "\n");
  check(terminal || !failed, ErrorCode::kInvalidArgument, "some messages were not answered");
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine, "generate");
  engine.row("max_sequences").info.by_program = true;
  for (const char* limit : {"max_waiting", "max_waiting_tokens"}) engine.row(limit).info.by_program = true;
  auto* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->footer(R"(Examples:
  octet chat path/to/model
  octet chat path/to/model --system "Answer in one sentence." --temperature 0.7 --stats
  octet chat path/to/model --adapter out/sft
  printf 'What is FP8?\nAnd who uses it?\n' | octet chat out/run --temperature 0
Each line is a message. /reset forgets the conversation, /system TEXT gives a new system message, /exit or Ctrl-D
leaves, Ctrl-C stops an answer. Sampling is what the folder's generation_config.json says where no option does.)");
  add_model_option(*command, options->model);
  command->add_option("--system", options->system, "system message")->default_str("");
  command
      ->add_option("--chat-template", options->chat_template,
                   "a Jinja file (default: the adapter's, if it has one, else the model's)")
      ->default_str("");
  add_adapter_option(*command, options->engine, "One at most here.");
  add_options(*command, engine, {"tokenizer"});
  command->add_option("-n,--max-tokens", options->max_tokens, "most tokens of an answer (default: the context's rest)")
      ->check(positive())
      ->default_str("");
  add_sampling_options(*command, options->request, options->logit_bias);
  command->add_option("--stop", options->request.stop, "stop before this text (may be given several times)")
      ->allow_extra_args(false);
  command->add_flag("--stats", options->stats, "print tokens per second after each answer");
  add_options(*command, engine,
              {"context", "recipe", "kv_cache", "draft", "draft_tokens", "draft_memory", "device", "tensor"});
  add_threads_option(*command, options->threads);
  add_verbose_option(*command);
  add_other_options(*command, engine, "Engine");
  command->callback([options, command] { run_chat(*command, *options); });
}

}  // namespace octet
