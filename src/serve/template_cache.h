// Chat templates that requests bring, each parsed once as long as it is asked for.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "chat/chat_template.h"

namespace octet::serve {

class TemplateCache {
 public:
  // Throws as ChatTemplate. From any thread.
  std::shared_ptr<const ChatTemplate> get(const std::string& source);

 private:
  static constexpr size_t kMax = 32;
  using Entry = std::pair<std::string, std::shared_ptr<const ChatTemplate>>;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace octet::serve
