// The page at /: chat and charts in a browser, one file, made of page/, without anything from outside.
#pragma once

#include <string_view>

#include "serve/http.h"

namespace octet::serve {

std::string_view page_text();
// Fields of its head. Its content security policy lets nothing run but the page's own style and script, by their
// hashes, and nothing be reached but this server.
const HttpFields& page_fields();

}  // namespace octet::serve
