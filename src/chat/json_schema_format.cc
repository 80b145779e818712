// Formats of strings that JSON Schema defines, as regular expressions (RFC 3339, 3986, 4122, 5321, 1123, 4291, 6901).
#include <map>

#include "base/error.h"
#include "chat/json_schema.h"

namespace octet::guides {
namespace {

std::map<std::string, std::string> make_formats() {
  std::map<std::string, std::string> f;
  const std::string two = "(?:[01][0-9]|2[0-3])", sixty = "[0-5][0-9]", hex = "[0-9A-Fa-f]";
  f["date"] =
      "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
      "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|"
      "(?:[02468][048]|[13579][26])00)-02-29)";
  f["time"] = two + ":" + sixty + ":" + sixty + "(?:\\.[0-9]+)?(?:[Zz]|[+-]" + two + ":" + sixty + ")";
  f["date-time"] = f["date"] + "[Tt]" + f["time"];
  const std::string clock = "T(?:[0-9]+H(?:[0-9]+M)?(?:[0-9]+S)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  f["duration"] =
      "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M)?(?:[0-9]+D)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:" + clock + ")?|" + clock + ")";
  f["uuid"] = hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}";
  const std::string label = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?";
  f["hostname"] = label + "(?:\\." + label + ")*";
  const std::string atom = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+";
  f["email"] = atom + "(?:\\." + atom + ")*@" + f["hostname"];
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  f["ipv4"] = octet + "(?:\\." + octet + "){3}";
  // Eight groups, the last two also as an IPv4 address; "::" stands for one or more of them.
  const std::string group = hex + "{1,4}", last = "(?:" + group + ":" + group + "|" + f["ipv4"] + ")";
  const auto head = [&](int most) { return "(?:(?:" + group + ":){0," + std::to_string(most) + "}" + group + ")?"; };
  std::string all = "(?:" + group + ":){6}" + last + "|::(?:" + group + ":){5}" + last;
  for (int after = 4; after >= 0; after--)
    all += "|" + head(4 - after) + "::(?:" + group + ":){" + std::to_string(after) + "}" + last;
  f["ipv6"] = all + "|" + head(5) + "::" + group + "|" + head(6) + "::";
  const std::string escape = "%" + hex + "{2}", plain = "0-9A-Za-z._~!$&'()*+,;=\\-";
  const std::string character = "(?:[" + plain + ":@]|" + escape + ")", segments = "(?:/" + character + "*)*";
  const std::string host = "(?:\\[(?:" + f["ipv6"] + ")\\]|(?:[" + plain + "]|" + escape + ")*)";
  const std::string authority = "//(?:(?:[" + plain + ":]|" + escape + ")*@)?" + host + "(?::[0-9]*)?" + segments;
  const std::string tail = "(?:\\?(?:" + character + "|[/?])*)?(?:#(?:" + character + "|[/?])*)?";
  const std::string rooted = "/(?:" + character + "+" + segments + ")?";
  f["uri"] = "[A-Za-z][0-9A-Za-z+.-]*:(?:" + authority + "|" + rooted + "|" + character + "+" + segments + ")?" + tail;
  const std::string no_colon = "(?:[" + plain + "@]|" + escape + ")+" + segments;
  f["uri-reference"] = f["uri"] + "|(?:" + authority + "|" + rooted + "|" + no_colon + ")?" + tail;
  f["json-pointer"] = "(?:/(?:[^/~]|~[01])*)*";
  f["relative-json-pointer"] = "(?:0|[1-9][0-9]*)(?:#|" + f["json-pointer"] + ")";
  return f;
}

}  // namespace

std::string_view format_regex(const std::string& format) {
  static const std::map<std::string, std::string> formats = make_formats();
  if (const auto found = formats.find(format); found != formats.end()) return found->second;
  for (const char* other : {"regex", "iri", "iri-reference", "uri-template", "idn-email", "idn-hostname"})
    check(format != other, ErrorCode::kInvalidArgument, "JSON schema: the format \"{}\" is not enforced", format);
  return {};
}

}  // namespace octet::guides
