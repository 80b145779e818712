// The program from the command line: exit codes and messages for valid and invalid arguments. Checks of the rooms' own
// tests are not repeated; each case runs the built `octet` a few times on a model that takes seconds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "infer/engine_settings.h"
#include "system/tiny.h"

namespace octet {
namespace {

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  // Starts a shell line in which $OCTET is the program; its streams go to files of the test's folder.
  pid_t start(const std::string& line) const {
    pid_t child = fork();
    if (child != 0) return child;
    const std::string out = folder_.file("out.txt"), err = folder_.file("err.txt");
    bool ready = chdir(folder_.path().c_str()) == 0 && setenv("OCTET", OCTET_PROGRAM, 1) == 0 &&
                 freopen(out.c_str(), "w", stdout) != nullptr && freopen(err.c_str(), "w", stderr) != nullptr;
    if (ready) execl("/bin/bash", "bash", "-c", line.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  Outcome wait_for(pid_t child) const {
    int status = 0;
    waitpid(child, &status, 0);
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .out = read_file(folder_.file("out.txt")),
            .err = read_file(folder_.file("err.txt"))};
  }
  Outcome shell(const std::string& line) const { return wait_for(start(line)); }

  void expect(int code, const std::string& words, const std::string& message) const {
    Outcome outcome = shell("$OCTET " + words);
    EXPECT_EQ(outcome.code, code) << words << '\n' << outcome.err;
    EXPECT_NE((outcome.out + outcome.err).find(message), std::string::npos) << words << '\n' << outcome.err;
  }

  // A text, its vocabulary `tok` and its tokens `set_train`, `set_val`.
  void make_data() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} says {} and {}\n", i, i * 7 % 13, i * i % 31);
    write_file(folder_.file("text.txt"), text);
    Outcome made = shell(
        "$OCTET tokenizer train --vocab-size 300 --out tok text.txt && "
        "$OCTET data --tokenizer tok --split 0.9,0.1 --split-by tokens --out set text.txt");
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static std::string train_words(const std::string& more) {
    return "train model.size=gpt2-nano model.hidden=16 model.layers=1 model.heads=2 data.train=set_train "
           "data.sequence_length=16 train.micro_batch=2 train.steps=8 train.threads=1 eval.interval=0 " +
           more;
  }

  TempFolder folder_;
};

TEST_F(Cli, MistypedWordsAreAnsweredWithTheNearest) {
  expect(2, "generatr run", "no command 'generatr'; did you mean 'generate'?");
  expect(2, "tokenizer trainn", "no command 'trainn'; did you mean 'train'?");
  expect(2, "generate run --promt hi", "no option '--promt'; did you mean '--prompt'?");
  expect(2, "train a.yaml --disabel=fuse", "no option '--disabel'; did you mean '--disable'?");
  expect(2, "generate", "model is required");
  expect(1, "train optimiser.lr=1", "did you mean 'optimizer.lr'?");
  expect(1, "train optimizer.lr=nan", "want a finite number");
  expect(1, "plan model.size=gpt3-175", "nearest: gpt3-175b");
  expect(1, "plan model.size=qqqqqqqqqqqq", "no size is named 'qqqqqqqqqqqq' (all: ");
  expect(1, "plan model.layers=1000000000", "model.layers: 1000000000");
  expect(1, "eval nowhere a.txt --recipe fp9", "nowhere");
}

TEST_F(Cli, WholeNumbersThatNoOptionHoldsAreNamed) {
  constexpr const char* kSeed = "(want a whole number, 0 to 2^64 - 1)";
  constexpr const char* kCount = "(want a whole number, -2^63 to 2^63 - 1)";
  for (const std::string command :
       {"generate run", "bench throughput run", "bench latency run", "bench trace run --trace /dev/null"}) {
    expect(2, command + " --seed 18446744073709551616", std::string("--seed: 18446744073709551616 ") + kSeed);
    expect(2, command + " --seed -1", std::string("--seed: -1 ") + kSeed);
    expect(2, command + " --seed 1.5", std::string("--seed: 1.5 ") + kSeed);
  }
  expect(1, "generate nowhere --seed 18446744073709551615", "nowhere: no such file");
  expect(2, "generate run -n 9223372036854775808", std::string("--max-tokens: 9223372036854775808 ") + kCount);
  expect(2, "generate run --top-k -9223372036854775809", std::string("--top-k: -9223372036854775809 ") + kCount);
  expect(2, "generate run --min-tokens -1", "--min-tokens: -1 (want >= 0)");
  for (const std::string command : {"generate run", "eval run a.txt", "quantize run --out a"})
    expect(2, command + " --threads 4294967297", "--threads: Value 4294967297 not in range 0 to 4096");
  expect(2, "tokenizer decode tok 3000000000", "ids: Value 3000000000 not in range 0 to 2147483647");
  expect(1, "plan train.seed=9223372036854775808", "want an integer from 0 to 9223372036854775807");
}

TEST_F(Cli, OptionsOfTheEngineAreRefusedOutOfTheRangesOfTheirTable) {
  EngineOptions options;
  const SettingsTable settings = settings_of(options, "generate");
  for (const SettingsTable::Row& row : settings.rows()) {
    if (std::isinf(row.info.min)) continue;
    std::string flag = "--" + row.name;
    std::ranges::replace(flag, '_', '-');
    const auto value = fmt::format("{}", row.info.min - (row.info.off ? 4 : 1));
    const Outcome outcome = shell(fmt::format("$OCTET bench throughput run {} {}", flag, value));
    EXPECT_EQ(outcome.code, 2) << flag;
    for (const std::string& part : {flag, value, fmt::format("{}", row.info.min)})
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << ": " << outcome.err;
  }
  expect(2, "generate run --policy fair", "--policy: fair not in {never-evict,max-utilization}");
  expect(2, "bench trace run --trace /dev/null --rank-timeout nan", "--rank-timeout: nan (want >= 0.1)");
}

// Options of every command, as listed by bash completion.
TEST_F(Cli, HelpNamesOptionsAsTheyAreTyped) {
  const std::string help = shell(R"($OCTET completion bash | sed -n "s/^    '\(.*\)') choices.*/\1/p" |
                                    while read -r words; do echo "== octet $words"; $OCTET $words --help; done)")
                               .out;
  for (const char* there : {"== octet \n", "== octet tokenizer train\n", "== octet bench trace\n", "--no-bos "})
    EXPECT_NE(help.find(there), std::string::npos) << there << help;
  for (size_t at = 0; (at = help.find('{', at + 1)) != std::string::npos;) {
    const bool words = help.substr(at - 5, 5) == "TEXT:", shell_variable = help[at - 1] == '$';  // TEXT:{bpe,char}
    EXPECT_TRUE(words || shell_variable) << help.substr(help.rfind('\n', at) + 1, 100);
  }
}

TEST_F(Cli, PlansAreOfTheRecipeThatTrains) {
  const std::string words = "plan model.size=gpt2-nano data.sequence_length=64 train.micro_batch=2 ";
  const auto plan = [&](const std::string& more) {
    return shell("$OCTET " + words + more + " | sed 's/compiled in .*//'").out;
  };
  EXPECT_EQ(plan(""), plan("precision.recipe=" + RunConfig{}.recipe));
  EXPECT_NE(plan(""), plan("precision.recipe=bf16"));
}

TEST_F(Cli, VersionSaysWhatWasBuilt) {
  const std::vector<std::string> lines = {R"(octet [0-9.]+ \(commit (unknown|[0-9a-f]{12,}(-dirty)?)\))",
                                          R"(compiler: [A-Za-z]+ [0-9.]+, [A-Za-z]+)", R"(CPU: -march=[^ ]+ \(.+\))",
                                          R"(CUDA: (no CUDA|sm_[0-9].* \(toolkit [0-9.]+\)))"};
  for (const std::string& line : lines)
    EXPECT_EQ(shell("$OCTET --version | grep -Ex '" + line + "'").code, 0) << line << shell("$OCTET --version").out;
}

TEST_F(Cli, SettingsFilesNameTheLine) {
  write_file(folder_.file("syntax.yaml"), "train:\n  steps: 5\n bad: [\n");
  write_file(folder_.file("twice.yaml"), "train.steps: 5\ntrain:\n  steps: 6\n");
  write_file(folder_.file("group.yaml"), "out: x\ntrain:\n");
  write_file(folder_.file("empty.yaml"), "");
  expect(1, "train syntax.yaml", "syntax.yaml:3: not valid YAML");
  expect(1, "train twice.yaml", "twice.yaml:3: 'train.steps' is set twice");
  expect(1, "train group.yaml", "group.yaml:2: 'train' is a group of settings");
  expect(1, "train empty.yaml", "data.train is not set");
  expect(1, "train .", "is a folder; want a settings file");
}

TEST_F(Cli, OutputThatCannotBeWrittenIsAnError) {
  EXPECT_EQ(shell("$OCTET config | head -c 1 >/dev/null").code, 0);
  if (!path_exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const std::string words : {"--help", "config", "plan --list-models"}) {
    Outcome outcome = shell("$OCTET " + words + " >/dev/full");
    EXPECT_EQ(outcome.code, 1) << words;
    EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << words << outcome.err;
    EXPECT_EQ(shell("$OCTET " + words + " >&-").code, 1) << words;
  }
}

TEST_F(Cli, TextBecomesAModelThatIsEvaluatedAndContinued) {
  make_data();
  expect(0, train_words("out=run precision.recipe=fp8-delayed data.separate_documents=true model.dropout=0.1"),
         "checkpoint: run/checkpoints/step_00000008");
  // Serving uses the scales of training; without a terminal no line is redrawn.
  Outcome eval = shell("$OCTET eval run --data set_val --recipe fp8-delayed");
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_NE(eval.out.find("bits/byte"), std::string::npos) << eval.out;
  EXPECT_EQ(eval.err.find('\r'), std::string::npos);
  expect(0, "eval run text.txt --max-tokens 50 --windows 1000", "tokens 50 ");
  expect(0, "eval run text.txt --max-tokens 50 --kv-cache int8", "tokens 50 ");
  expect(1, "eval run text.txt --kv-cache int4", "kv_cache: \"int4\" (want f32, bf16, e4m3 or int8)");
  expect(0, "generate run --recipe fp8-delayed --prompt line -n 4 -t 0", "line");
  expect(0, "generate run --prompt '' -n 2", "");
  expect(0, "generate run --interactive -n 2 </dev/null", "");
  EXPECT_EQ(shell("$OCTET generate run --prompt line -n 0").out, "line\n");
  Outcome longer = shell("$OCTET generate run --prompt-file text.txt");
  EXPECT_EQ(longer.code, 1);
  EXPECT_EQ(longer.out, "") << "a prompt that cannot be used is not printed";
  EXPECT_NE(longer.err.find("the context is 64"), std::string::npos) << longer.err;
  expect(2, "generate run --prompt a -n -1", "--max-tokens: -1 (want >= 0)");
  // The model may stand after a list of prompts; an unusable prompt does not stop others from being printed.
  EXPECT_EQ(shell("$OCTET generate --prompt line -n 0 --stop x run").out, "line\n");
  Outcome some = shell("$OCTET generate run -p line --prompt-file text.txt -p says -n 2 --json");
  EXPECT_EQ(some.code, 1);
  EXPECT_EQ(std::count(some.out.begin(), some.out.end(), '\n'), 3) << some.out;
  EXPECT_NE(some.out.find("\"finish_reason\":\"error\""), std::string::npos) << some.out;
  EXPECT_NE(some.err.find("prompt 3 of 3: the prompt has"), std::string::npos) << some.err;
  EXPECT_NE(some.err.find("1 of 3 completions failed"), std::string::npos) << some.err;
  EXPECT_EQ(shell("echo line | $OCTET generate run --prompts-file /dev/stdin -n 0").out, "line\n");
  expect(1, "generate run --prompt a --top-p 1.5", "top_p: 1.5 (want 0 to 1; 0 is greedy");
  EXPECT_EQ(shell("$OCTET generate run -p line -n 6 --top-p 0 --seed 5").out,
            shell("$OCTET generate run -p line -n 6 -t 0").out);
  expect(1, "generate run --prompt a --stop ''", "empty stop string");
  expect(1, "generate run --prompt a --logit-bias 1=2", "want TOKEN:VALUE");
  expect(1, "generate run --prompt a --kv-cache int3", "want f32, bf16, e4m3 or int8");
  expect(1, "generate run --tokenizer nowhere", "no such file or folder");
  expect(1, "generate gpt2-124m", "gpt2-124m: no such file or folder (it names a size");
  // Output of several prompts and samples is in order, whatever the batches.
  write_file(folder_.file("prompts.jsonl"), "{\"prompt\": \"line 3\"}\n{\"prompt\": \"says\"}\n");
  const std::string all = shell("$OCTET generate run -p line --prompts-file prompts.jsonl --count 2 -n 6").out;
  const std::string one = shell("$OCTET generate run -p line -n 6").out;
  EXPECT_TRUE(all.starts_with("--- 1\n" + one)) << all << one;
  EXPECT_EQ(shell("cp prompts.jsonl p.json && $OCTET generate run --prompts-file p.json -n 0").out,
            shell("$OCTET generate run --prompts-file prompts.jsonl -n 0").out);
  EXPECT_NE(all.find("--- 6\nsays"), std::string::npos) << all;
  Outcome json = shell("$OCTET generate run -p line --json -n 3 --logprobs 2 --ignore-eos --min-p 0.1 --top-k 9");
  EXPECT_NE(json.out.find("\"top_logprobs\":[["), std::string::npos) << json.out << json.err;
  // The best texts of searches from ids, best first.
  Outcome beams = shell(
      "$OCTET generate run --ids 1,2,3 --ids 4 --stop-id 5 -n 6 --beams 3 --count 2 --length-penalty 0.5 "
      "--early-stopping never --json");
  EXPECT_EQ(beams.code, 0) << beams.err;
  EXPECT_EQ(std::count(beams.out.begin(), beams.out.end(), '\n'), 4) << beams.out;
  EXPECT_NE(beams.out.find("\"score\":-"), std::string::npos) << beams.out;
  beams = shell("$OCTET generate run -p line -n 4 --beams 2");
  EXPECT_TRUE(beams.out.starts_with("--- 1, score -")) << beams.out << beams.err;
  expect(1, "generate run --ids 1,x", "want ids such as 1,2,3");
  expect(1, "generate run --prompt a --beams 2 -t 0.5", "temperature: 0.5 with beams");
  expect(1, "generate run --prompt a --beams 2 --count 3", "n: 3 with beams");
  Outcome talk = shell("printf 'line 1\\nand\\n' | $OCTET generate run --interactive -n 5 -t 0 --stats");
  EXPECT_EQ(std::count(talk.out.begin(), talk.out.end(), '\n'), 2) << talk.out << talk.err;
  // The public header suffices for a program that uses the library.
  Outcome example = shell("'" OCTET_EXAMPLE "' run/checkpoints/step_00000008 line says");
  EXPECT_EQ(example.code, 0) << example.err;
  EXPECT_NE(example.out.find("ended by"), std::string::npos) << example.out;
  expect(1, "verify run", "expected.safetensors");
  write_file(folder_.file("empty.txt"), "");
  expect(1, "eval run empty.txt", "at least 2 are needed");
  expect(1, "data --tokenizer tok --out e empty.txt", "the corpus is empty");
  expect(1, "data --tokenizer tok --out e/ text.txt", "names a folder");
  write_file(folder_.file("ab.txt"), "ab");
  expect(0, "tokenizer train --kind char --out chars ab.txt", "2 characters");
  write_file(folder_.file("abx.txt"), "axxb");
  expect(1, "data --tokenizer chars --out x abx.txt", "--on-unknown-byte=drop leaves it out");
  expect(0, "data --tokenizer chars --out x --on-unknown-byte drop abx.txt",
         "2 pieces of text without a token were left out");
}

TEST_F(Cli, RunsThatBeginAgainLeaveNoLaterCheckpointsBehind) {
  make_data();
  expect(0, train_words("out=run checkpoint.interval=4"), "step_00000008");
  expect(0, train_words("out=run"), "already at step 8 of train.steps=8");
  expect(1, train_words("out=run model.hidden=32"), "model.hidden 16 -> 32");
  expect(1, train_words("out=none model.architecture=llama model.max_positions=8"), "exceeds model.max_positions 8");
  // Checkpoints of an earlier run are neither served nor resumed, and not deleted.
  expect(0, train_words("out=run resume=never train.steps=3"), "step_00000003");
  EXPECT_EQ(list_folder(folder_.file("run/checkpoints")), std::vector<std::string>{"step_00000003"});
  EXPECT_EQ(list_folder(folder_.file("run/set_aside_1")), (std::vector<std::string>{"step_00000004", "step_00000008"}));
  expect(0, train_words("out=run train.steps=6 checkpoint.interval=1"), "resumed from run/checkpoints/step_00000003");
  expect(0, train_words("out=run resume=run/checkpoints/step_00000005 train.steps=5"), "already at step 5");
  EXPECT_EQ(list_folder(folder_.file("run/set_aside_2")), std::vector<std::string>{"step_00000006"});
}

TEST_F(Cli, ARunBeginsFromTheNewestCheckpointOfAnother) {
  make_data();
  expect(0, train_words("out=first"), "step_00000008");
  const std::string tuned =
      "train data.train=set_train data.sequence_length=16 train.micro_batch=2 train.steps=1 "
      "optimizer.lr=1e-6 model.from=";
  expect(0, tuned + "first out=second", "step_00000001");
  expect(0, tuned + "first/checkpoints/step_00000008 out=third", "step_00000001");
  EXPECT_EQ(checkpoint_bytes(folder_.file("second/checkpoints/step_00000001")),
            checkpoint_bytes(folder_.file("third/checkpoints/step_00000001")));
  ASSERT_EQ(shell("mkdir -p empty/checkpoints").code, 0);
  expect(1, tuned + "empty out=fourth", "empty/checkpoints contains no checkpoint");
}

TEST_F(Cli, MasksThatADeviceHasNotAreNamed) {
  make_data();
  const std::string words = " train.device=cpu train.dropout_masks=library train.steps=1";
  expect(0, train_words("out=a model.dropout=0.1" + words),
         "attention uses portable masks instead of the library's: a CPU");
  EXPECT_EQ(shell("$OCTET " + train_words("out=b" + words)).err.find("portable masks"), std::string::npos)
      << "no dropout";
  expect(1, train_words("out=c model.dropout=0.1 model.dropout_bits=16 train.steps=1"),
         "model.dropout_bits: bits is 16 (want 8 or 32)");
  expect(1, train_words("out=c model.dropout=0.001 model.dropout_bits=8 train.steps=1"),
         "dropout of 0.001 with 8 bits is 0 / 256");
  expect(1, train_words("out=c model.dropout=0.1 model.dropout_bits=8" + words),
         "model.dropout_bits is 8 and train.dropout_masks library");
}

TEST_F(Cli, VerboseSaysWhatTheStartOfARunTakes) {
  make_data();
  const std::string words = train_words("out=run train.device=cpu -v");
  const Outcome first = shell("$OCTET " + words), again = shell("$OCTET " + words + " train.steps=9");
  for (const char* part : {"data: ", "checkpoints looked through: ", "plan: ", "memory: ", "kernels bound: ",
                           "executor: ", "weights: ", "start of the run: "}) {
    EXPECT_NE(first.err.find(part), std::string::npos) << part << '\n' << first.err;
    EXPECT_NE(again.err.find(part), std::string::npos) << part << '\n' << again.err;
  }
  EXPECT_EQ(shell("$OCTET " + train_words("out=quiet")).err.find("kernels bound"), std::string::npos);
}

TEST_F(Cli, EvalOfASetIsTheValidationOfItsRun) {
  make_data();
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += fmt::format("{{\"ask\": \"line {} says \", \"text\": \"{}\"}}\n", i, i * 7 % 13);
  write_file(folder_.file("asked.json"), lines);
  expect(0, "data --tokenizer tok --prompt-key ask --split 0.8,0.2 --out set asked.json", "tokens of prompts");
  for (const std::string separate : {"true", "false"}) {
    const std::string run = "run_" + separate;
    expect(0,
           train_words("data.validation=set_val precision.recipe=fp32 train.device=cpu out=" + run +
                       " data.separate_documents=" + separate),
           "validation loss");
    const auto number = [](const std::string& text, const std::string& key) {
      return std::stod(text.substr(text.rfind("\"" + key + "\":") + key.size() + 3));
    };
    std::string log = read_file(folder_.file(run + "/log.jsonl"));
    log = log.substr(log.rfind("\"eval\""));
    log = log.substr(0, log.find('\n'));
    const std::string words = "$OCTET eval " + run + " --data set_val --length 16 --device cpu --recipe fp32 --json ";
    const Outcome eval = shell(words);
    EXPECT_EQ(number(eval.out, "tokens"), number(log, "tokens")) << log << eval.out << eval.err;
    EXPECT_NEAR(number(eval.out, "loss"), number(log, "loss"), 1e-4) << "float32 sums in another order";
    const Outcome other = shell(words + (separate == "true" ? "--joined-documents" : "--separate-documents"));
    EXPECT_GT(std::abs(number(other.out, "loss") - number(log, "loss")), 1e-4) << other.out;
  }
  expect(1, "eval run_true --data set_val --kv-cache f32", "leave out --kv-cache or --separate-documents");
}

TEST_F(Cli, SetsOfAnotherVocabularyAreNotEvaluated) {
  make_data();
  ASSERT_EQ(
      shell("tr a-z A-Z < text.txt > upper.txt && $OCTET tokenizer train --vocab-size 300 --out other upper.txt && "
            "$OCTET data --tokenizer other --out other_set text.txt")
          .code,
      0);
  expect(0, train_words("out=run"), "step_00000008");
  expect(0, "eval run --data set_val", "perplexity");
  expect(1, "eval run --data other_set", "other_set was made with the tokenizer");
  expect(1, "quantize run --out fp8 --text other_set.bin", "was made with the tokenizer");
  expect(1, "quantize run --to int8 --samples 2 --length 8 --out int8 --calibration other_set.bin",
         "was made with the tokenizer");
}

TEST_F(Cli, DataOfAnotherVocabularyDoesNotValidate) {
  make_data();
  ASSERT_EQ(shell("$OCTET tokenizer train --vocab-size 280 --out other text.txt && "
                  "$OCTET data --tokenizer other --out other_set text.txt")
                .code,
            0);
  expect(1, train_words("data.validation=other_set out=run"), "make both with one tokenizer");
}

TEST_F(Cli, BenchSaysWhatRan) {
  make_data();
  expect(0, train_words("out=run"), "step_00000008");
  Outcome outcome = shell("$OCTET bench throughput run -i 4 -o 4 -n 3 --max-sequences 8 --policy never-evict");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* fact : {"device: cpu\n", "recipe: bf16\n", "KV cache: bf16\n", "3 of 3 requests finished"})
    EXPECT_NE(outcome.out.find(fact), std::string::npos) << fact << outcome.out;
  EXPECT_NE(outcome.err.find("of KV cache"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(" ms per decode step of 3 sequences"), std::string::npos) << outcome.err;
  expect(1, "bench throughput run --context 6 -i 4 -o 4 -n 3", "no request fits the context of 6 tokens");
  expect(1, "bench latency gpt3-175b --random-weights --device cpu", " free may be used: ");
  expect(1, "bench throughput run --temperature -2", "temperature: -2");
  expect(2, "bench throughput run --price -1", "--price: -1 (want >= 0)");
  expect(2, "bench throughput run --slo-ttft nan", "--slo-ttft: nan (want > 0)");
  expect(2, "bench throughput run --policy fair", "--policy");
  expect(1, "bench throughput run --kv-cache-bytes 100", "bytes are missing; give them");
  ASSERT_EQ(shell("mkdir bare && cp run/checkpoints/step_00000008/*.{json,safetensors} bare && rm -f bare/tok*").code,
            0);
  expect(1, "generate bare -p line", "the folder contains none of");
  expect(0, "bench throughput bare -i 4 -o 4 -n 3 --max-sequences 8", "3 of 3 requests finished");
  expect(1, "bench throughput bare --tokenizer bare -n 3", "the folder contains none of");
}

TEST_F(Cli, QuantizedFoldersBringTheirVocabulary) {
  make_data();
  ASSERT_EQ(shell("$OCTET tokenizer train --kind char --out chars text.txt && "
                  "$OCTET data --tokenizer chars --out set_train text.txt")
                .code,
            0);
  expect(0, train_words("out=run"), "step_00000008");
  expect(0, "quantize run --out fp8", "fp8: written");
  expect(0, "generate fp8 -p line -n 2", "line");
  expect(1, "quantize run --out fp8", "already contains a model");
  expect(1, "quantize run --out run", "already contains a run");
  expect(0, "quantize run --tokenizer chars/characters.json --out named", "named: written");
  expect(0, "generate named -p line -n 2", "line");
  const std::string codes = " --group row --samples 4 --length 8 --calibration text.txt";
  expect(1, "quantize run --to int4 --group row --out int4", "give one with --calibration FILE");
  expect(1, "quantize run --to int4 --out int4 --calibration text.txt", "groups of 128 do not divide its 16 inputs");
  expect(1, "quantize run --to int4 --group row --samples 9999 --length 8 --calibration text.txt --out int4",
         "the calibration text is too short");
  expect(0, "quantize run --to int4 --keep mlp.down --text text.txt --out int4" + codes,
         "5 of 6 linears in codes, 1 kept");
  expect(0, "quantize run --to int8 --text text.txt --out int8" + codes, "int8: perplexity");
}

TEST_F(Cli, VerifyExitsNonZeroOutOfTolerance) {
  const std::string gpt2 = test_data_path("hf_goldens/gpt2");
  if (gpt2.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
  expect(0, "verify '" + gpt2 + "'", "passed");
  expect(1, "verify --tolerance 1e-12 '" + gpt2 + "'", "FAILED");
  expect(1, "verify --tolerance nan '" + gpt2 + "'", "want > 0");
  expect(0, "verify --recipe bf16 '" + gpt2 + "'", "relative tolerance of bf16: 0.05");
  expect(0, "verify --recipe fp8-current '" + gpt2 + "'", "relative tolerance of fp8-current: 0.25");
  expect(1, "verify --recipe fp8-current --tolerance 0.01 '" + gpt2 + "'", "FAILED");
  expect(0, "verify --training --recipe bf16 '" + gpt2 + "'", "tolerance of bf16: losses 0.01, gradients 0.05");
}

TEST_F(Cli, VerifyNamesTheReluThatRoundingTurns) {
  const std::string opt = test_data_path("hf_goldens/opt");
  if (opt.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/opt");
  const Outcome fast = shell("$OCTET verify --training " + opt);  // depends on the machine's summation order
  EXPECT_EQ(fast.code == 0, fast.out.find("rounding puts inputs of ReLUs on the other side of 0") == fast.out.npos);
  expect(0, "verify --training --interpret " + opt, "passed");
}

// From its first step on a run answers signals.
bool has_a_step(const std::string& log) {
  return path_exists(log) && read_file(log).find("\"kind\":\"step\"") != std::string::npos;
}

TEST_F(Cli, SignalsLeaveACheckpointAndASecondRunIsRefused) {
  make_data();
  const std::string endless =
      "exec $OCTET " + train_words("out=run train.steps=1G checkpoint.interval=0 log.interval=1");
  const std::string log = folder_.file("run/log.jsonl");
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    pid_t child = start(endless);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!has_a_step(log) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    Outcome second = shell("$OCTET " + train_words("out=run") + " 2>second.txt; code=$?; cat second.txt; exit $code");
    EXPECT_EQ(second.code, 1);
    EXPECT_NE(second.out.find(fmt::format("another run (process {})", child)), std::string::npos) << second.out;
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "signal " << signal;
    ASSERT_TRUE(is_folder(folder_.file("run/checkpoints")));
    EXPECT_EQ(list_folder(folder_.file("run/checkpoints")).size(), 1u);
    remove_path(folder_.file("run"));
  }
}

// The kernel signals a terminal's programs when it closes, the shell may once more, and nothing can be printed there.
TEST_F(Cli, AClosedTerminalLeavesACheckpoint) {
  make_data();
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    const std::string line =
        "exec '" OCTET_PROGRAM "' " + train_words("out=run train.steps=1G checkpoint.interval=0") + " log.interval=1";
    if (chdir(folder_.path().c_str()) == 0) execl("/bin/bash", "bash", "-c", line.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  ASSERT_GT(child, 0);
  const std::string log = folder_.file("run/log.jsonl");
  std::thread reader([&] {  // until the log has a line: an unread terminal blocks its writers
    char bytes[4096];
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!has_a_step(log) && std::chrono::steady_clock::now() < deadline)
      if (read(terminal, bytes, sizeof bytes) <= 0) break;
  });
  reader.join();
  close(terminal);
  for (int again = 0; again < 3; ++again) kill(child, SIGHUP);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  ASSERT_TRUE(is_folder(folder_.file("run/checkpoints")));
  EXPECT_EQ(list_folder(folder_.file("run/checkpoints")).size(), 1u);
}

TEST_F(Cli, AnIgnoredHangupStaysIgnored) {
  make_data();
  const pid_t child =
      start("trap '' HUP; exec $OCTET " + train_words("out=run train.steps=1G checkpoint.interval=0 log.interval=1"));
  const auto steps = [&] {
    const std::string log = folder_.file("run/log.jsonl");
    return path_exists(log) ? file_size(log) : 0;
  };
  const auto wait_beyond = [&](int64_t bytes) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (steps() <= bytes && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return steps() > bytes;
  };
  ASSERT_TRUE(wait_beyond(0));
  kill(child, SIGHUP);
  EXPECT_TRUE(wait_beyond(steps() + 2000)) << "the run has ended";
  kill(child, SIGTERM);
  const Outcome outcome = wait_for(child);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("stopped at step"), std::string::npos) << outcome.out;
}

// Minutes of micro-batches in one step: a signal does not wait for its end.
TEST_F(Cli, SignalsAreHeardInTheMiddleOfAStep) {
  make_data();
  pid_t child = start(
      "exec $OCTET train model.size=gpt2-nano model.layers=2 data.train=set_train data.sequence_length=64 "
      "train.micro_batch=2 train.global_batch=20000 train.steps=2 train.threads=1 out=run");
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  while (!path_exists(folder_.file("run/log.jsonl")) && seconds() < 60)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  kill(child, SIGINT);
  Outcome outcome = wait_for(child);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("stopped at step 0, before the next step was complete"), std::string::npos) << outcome.out;
  EXPECT_LT(seconds(), 30);
}

TEST_F(Cli, DamageIsPassedOverAndBadTokensLoseNothing) {
  make_data();
  expect(0, train_words("out=run checkpoint.interval=4"), "step_00000008");
  Outcome damaged =
      shell("printf X | dd of=run/checkpoints/step_00000008/model.safetensors bs=1 seek=900 conv=notrunc");
  ASSERT_EQ(damaged.code, 0);
  expect(0, "generate run --prompt a -n 1", "falling back to the one before it");
  ASSERT_EQ(shell("rm run/checkpoints/step_00000004/manifest.json").code, 0);
  expect(1, "generate run --prompt a -n 1", "run: none of 2 checkpoints is sound: run/checkpoints/step_00000008: 1 of");
  // An id beyond the vocabulary met in the middle of a run: what was learnt up to there is kept.
  Outcome broken = shell(
      "cp set_train.idx bad.idx; cp set_train.bin bad.bin; printf '\\377\\377' | "
      "dd of=bad.bin bs=2 seek=2000 conv=notrunc");
  ASSERT_EQ(broken.code, 0);
  expect(1, train_words("data.train=bad model.vocab_size=300 train.steps=5000 checkpoint.interval=0 out=bad_run"),
         "outside the vocabulary of 300");
  EXPECT_TRUE(is_folder(folder_.file("bad_run/checkpoints")));
}

TEST_F(Cli, AReadOnlyDiskIsNamed) {
  make_data();
  make_folders(folder_.file("ro"));
  const std::string mounted = "unshare -rm sh -c 'mount -t tmpfs -o ro,size=64k none ro && exec ";
  if (shell(mounted + "true'").code != 0) GTEST_SKIP() << "no file system can be mounted here";
  const Outcome outcome = shell(mounted + "$OCTET " + train_words("out=ro/run/a") + "'");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("ro/run/a: ro cannot be written: Read-only file system: set out= to another disk"),
            std::string::npos)
      << outcome.err;
}

TEST_F(Cli, ARunThatCannotFitSaysHowManyBytesAreMissing) {
  make_data();
  expect(1, "train model.size=gpt3-1t data.train=set_train out=big", "bytes are missing");
  EXPECT_FALSE(path_exists(folder_.file("big")));
}

}  // namespace
}  // namespace octet
