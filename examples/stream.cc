// Uses the engine as a library: several requests at once, each streamed by its own thread.
//
//   stream MODEL [PROMPT...]        MODEL: a Hugging Face folder, a checkpoint or a llama2.c file
#include <octet/engine.h>

#include <exception>
#include <iostream>
#include <mutex>
#include <thread>

namespace {

std::mutex output;

// What a server does for each client.
void serve(octet::Engine& engine, const std::string& prompt) {
  octet::GenerationRequest request;
  request.prompt = prompt;
  request.sampling.temperature = 0.8;
  request.sampling.top_p = 0.95;
  request.max_tokens = 64;
  octet::GenerationStream stream = engine.submit(std::move(request));  // destroying it cancels the request
  std::string text, reason;
  for (octet::GenerationEvent event; stream.next(event);) {
    text += event.text;  // whole characters: can be sent at once
    reason = event.error.empty() ? octet::finish_reason_name(event.finished) : event.error;
  }
  octet::RequestTimes times = stream.times();
  std::lock_guard lock(output);
  std::cout << prompt << text << "\n[" << times.generated_tokens << " tokens, the first after "
            << 1000 * times.first_token << " ms, ended by " << reason << "]\n\n";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "usage: stream MODEL [PROMPT...]\n";
    return 2;
  }
  octet::EngineOptions options;
  options.max_sequences = 8;
  auto engine = octet::Engine::open(argv[1], options);
  std::vector<std::string> prompts(argv + 2, argv + argc);
  if (prompts.empty()) prompts = {"Once upon a time", "The little dog", "It was"};
  std::vector<std::thread> clients;
  for (const std::string& prompt : prompts) clients.emplace_back([&] { serve(*engine, prompt); });
  for (std::thread& client : clients) client.join();
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
