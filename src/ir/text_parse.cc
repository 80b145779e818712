// The parser of the text form: recursive descent over words; one function per rule of the grammar in docs/ir.md.
#include <unordered_map>

#include "base/error.h"
#include "ir/text.h"
#include "ir/text_words.h"

namespace octet {
namespace {

constexpr int kMaxDepth = 8;  // of fusion bodies
constexpr int64_t kMaxRanks = 1 << 20;
constexpr size_t kMaxAttrs = 64;  // of a node: Attrs is a sorted list

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : in_(text, where) {}

  Graph whole_graph() {
    Graph result = graph(0);
    expect_end();
    return result;
  }

  Program whole_program() {
    in_.expect_word("program", "'program'");
    Program program;
    program.name = name();
    while (in_.accept_word("state")) state(program);
    while (!in_.at_end()) {
      size_t begin = in_.position();
      Graph next = graph(0);
      if (program.find_graph(next.name()) != nullptr) {
        in_.fail_at(begin, fmt::format("a graph named {} was given before", next.name()));
      }
      program.add_graph(std::move(next));
    }
    return program;
  }

 private:
  using Values = std::unordered_map<std::string, NodeId>;

  void expect_end() {
    if (!in_.at_end()) in_.fail_expected("the end of the text");
  }

  std::string name() {
    in_.expect('@', "a name (@word or @\"...\")");
    return in_.word_or_quoted("a name after '@'");
  }

  // An enumerator by the text its name function gives.
  template <typename Enum>
  Enum one_of(const char* what, Enum last, const char* (*name_of)(Enum)) {
    size_t begin = in_.position();
    std::string_view word = in_.word(what);
    for (int i = 0; i <= static_cast<int>(last); ++i) {
      if (word == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
    }
    in_.fail_at(begin, fmt::format("found '{}', expected {}", word, what));
  }

  // An error of `work` is one of the text that begins here.
  template <typename Work>
  auto located(size_t begin, const Work& work) {
    try {
      return work();
    } catch (const Error& error) {
      in_.fail_at(begin, error.message());
    }
  }

  TensorType type(Layout& layout) {
    size_t begin = in_.position();
    std::string_view word = in_.word("a type like f32[4,8]");
    const DType dtype = located(begin, [&] { return parse_dtype(word); });
    Shape shape;
    in_.expect('[', "'['");
    while (!in_.accept(']')) {
      if (shape.rank() > 0) in_.expect(',', "',' or ']'");
      shape.dims.push_back(in_.integer("an integer"));
      const int dim = shape.rank() - 1;
      while (in_.accept('*')) layout = layout.cut(dim, axis());
      if (in_.accept('@')) layout = layout.with(dim, layout.cut_axes(dim), bounded("an outer size", INT64_MAX));
    }
    for (const auto& [mark, kind] :
         {std::pair{'+', Pending::kSum}, {'^', Pending::kMax}, {'~', Pending::kLse}, {'!', Pending::kNever}})
      while (in_.accept(mark)) layout.pending_axes(kind) = layout.pending_axes(kind) | AxisSet(axis());
    located(begin, [&] { check_layout(layout, shape); });
    return {dtype, shape};
  }

  AxisList axis() {
    const size_t begin = in_.position();
    return axes_of(in_.word("an axis of the mesh"), begin);
  }

  void types(Node& node) {
    do {
      node.layouts.emplace_back();
      node.results.push_back(type(node.layouts.back()));
    } while (in_.accept(','));
  }

  // "dp=2 tp=2"
  Mesh mesh() {
    Mesh mesh;
    do {
      const size_t begin = in_.position();
      const AxisList axes = axes_of(in_.word("an axis of the mesh"), begin);
      in_.expect('=', "'='");
      mesh[axes[0]] = static_cast<int32_t>(bounded("a number of ranks", kMaxRanks));
      if (mesh[axes[0]] < 1) in_.fail_at(begin, "a mesh has at least one rank along an axis");
    } while (std::string_view("pdct").find(in_.peek()) != std::string_view::npos);
    return mesh;
  }

  AxisList axes_of(std::string_view words, size_t begin) {
    return located(begin, [&] { return parse_axes(words); });
  }

  std::vector<int64_t> int_list() {
    std::vector<int64_t> list;
    in_.expect('[', "'['");
    if (in_.accept(']')) return list;
    do {
      list.push_back(in_.integer("an integer"));
    } while (in_.accept(','));
    in_.expect(']', "',' or ']'");
    return list;
  }

  // Numbers with a point, an exponent, nan or inf are doubles.
  double number(std::string_view word, size_t begin) {
    double value = 0;
    if (!text::read_number(word, value)) {
      in_.fail_at(begin, fmt::format("found '{}', expected a number", word.substr(0, 40)));
    }
    return value;
  }

  double number() {
    size_t begin = in_.position();
    return number(sign_and_word(), begin);
  }

  // 1e+20 holds a sign that is no word character.
  std::string sign_and_word() {
    std::string text(in_.word("a number"));
    if ((text.back() == 'e' || text.back() == 'E') && in_.accept('+')) text += in_.word("an exponent");
    return text;
  }

  Attr attr_value() {
    size_t begin = in_.position();
    if (in_.peek() == '"') return in_.quoted("a string");
    if (in_.peek() == '[') return int_list();
    if (in_.accept_word("true")) return true;
    if (in_.accept_word("false")) return false;
    std::string text = sign_and_word();
    if (text.find_first_of(".enEN") != std::string::npos) return number(text, begin);
    int64_t value = 0;
    if (!text::read_number(text, value)) {
      in_.fail_at(begin, fmt::format("found '{}', expected an attribute's value", text.substr(0, 40)));
    }
    return value;
  }

  Attrs attrs() {
    Attrs result;
    if (!in_.accept('{') || in_.accept('}')) return result;
    do {
      size_t begin = in_.position();
      if (result.entries().size() == kMaxAttrs) in_.fail_at(begin, fmt::format("more than {} attributes", kMaxAttrs));
      std::string key(in_.word("an attribute's name"));
      if (result.has(key)) in_.fail_at(begin, fmt::format("attribute {} is given twice", key));
      in_.expect('=', "'='");
      result.set(key, attr_value());
    } while (in_.accept(','));
    in_.expect('}', "',' or '}'");
    return result;
  }

  // %name or %name.result; the dot is a word character, so the last one is looked for.
  Value value(const Graph& graph, const Values& values) {
    size_t begin = in_.position();
    if (in_.accept_word("_")) return Value::none();
    in_.expect('%', "a value (%name, %name.result or _)");
    std::string_view word = in_.word("a value's name after '%'");
    std::string_view base = word.substr(0, word.find('.'));
    auto found = values.find(std::string(base));
    if (found == values.end()) in_.fail_at(begin, fmt::format("%{} is not defined above", base));
    Value result{found->second, 0};
    if (base.size() < word.size()) {
      std::string_view digits = word.substr(base.size() + 1);
      if (!text::read_number(digits, result.result) || result.result < 0)
        in_.fail_at(begin, fmt::format("found '%{}', expected %name.result", word));
    }
    size_t results = graph.node(result).results.size();
    if (static_cast<size_t>(result.result) >= results) {
      in_.fail_at(begin, fmt::format("%{} has {} results", base, results));
    }
    return result;
  }

  void node(Graph& graph, Values& values, int depth) {
    size_t begin = in_.position();
    std::string id(in_.word("a value's name after '%'"));
    if (id.find('.') != std::string::npos) in_.fail_at(begin, "the name of a new value has no '.'");
    in_.expect('=', "'='");
    size_t op_begin = in_.position();
    std::string op_text(in_.word("an op"));
    std::optional<Op> op = find_op(op_text);
    if (!op) {
      std::vector<std::string> names;
      for (const OpInfo& info : all_ops()) names.emplace_back(info.name);
      in_.fail_at(op_begin, fmt::format("no op is named {}{}", op_text, if_near(op_text, names, " (nearest: {})")));
    }
    Node node{.op = *op};
    if (in_.peek() == '%' || in_.peek() == '_') {
      do {
        node.inputs.push_back(value(graph, values));
      } while (in_.accept(','));
    }
    node.attrs = attrs();
    if (in_.accept(':')) types(node);
    if (in_.peek() == '@') node.name = name();
    if (in_.accept_word("layer")) node.layer = static_cast<int32_t>(bounded("a layer's index", INT32_MAX));
    if (in_.accept_word("phase")) node.phase = one_of("a phase", Phase::kOptimizer, phase_name);
    if (in_.accept_word("body")) {
      if (depth + 1 > kMaxDepth) in_.fail_at(begin, fmt::format("bodies are nested deeper than {}", kMaxDepth));
      node.body = std::make_shared<const Graph>(this->graph(depth + 1));
    }
    if ((node.body != nullptr) != (*op == Op::kFusion)) in_.fail_at(begin, "a fusion, and only that, has a body");
    add(graph, values, std::move(id), std::move(node), begin);
  }

  void add(Graph& graph, Values& values, std::string id, Node node, size_t begin) {
    const std::vector<TensorType> declared = node.results;
    const std::vector<Layout> declared_layouts = node.layouts;
    const NodeId made = located(begin, [&] { return graph.add(std::move(node)); });
    const std::vector<TensorType>& inferred = graph.node(made).results;
    for (size_t r = 0; !declared.empty() && r < std::max(declared.size(), inferred.size()); ++r) {
      const std::string said = r < declared.size() ? octet::print(declared[r], declared_layouts[r]) : "absent";
      const Value value{made, static_cast<int32_t>(r)};
      const std::string is = r < inferred.size() ? octet::print(inferred[r], graph.layout(value)) : "absent";
      if (said != is) in_.fail_at(begin, fmt::format("result {} is declared {}, the op gives {}", r, said, is));
    }
    if (!values.emplace(std::move(id), made).second) in_.fail_at(begin, "a value of this name is defined above");
  }

  Graph graph(int depth) {
    in_.expect_word("graph", "'graph'");
    std::string text = name();
    GraphRole role = graph_role(text);
    if (in_.accept_word("role")) role = role_after();
    Graph graph(std::move(text), role);
    if (in_.accept_word("mesh")) graph.set_mesh(mesh());
    if (in_.accept_word("stage")) graph.set_stage(one_of("a stage", Stage::kPacked, stage_name));
    Values values;
    while (!in_.accept_word("end")) {
      if (in_.accept('%')) {
        node(graph, values, depth);
      } else if (in_.accept_word("output")) {
        named(graph, values, graph.outputs());
      } else if (in_.accept_word("update")) {
        named(graph, values, graph.updates());
      } else {
        in_.fail_expected("'%', 'output', 'update' or 'end'");
      }
    }
    return graph;
  }

  GraphRole role_after() {
    if (in_.accept_word("none")) return GraphRole::kNone;
    return one_of("a graph's role", GraphRole::kCopyBlocks, graph_role_name);
  }

  void named(const Graph& graph, const Values& values, std::vector<NamedValue>& list) {
    std::string text = name();
    size_t begin = in_.position();
    Value found = value(graph, values);
    if (!found.exists()) in_.fail_at(begin, "found '_', expected a value");
    list.push_back({std::move(text), found});
  }

  void state(Program& program) {
    size_t begin = in_.position();
    StateEntry entry{.name = name()};
    if (program.find_state(entry.name) != nullptr) {
      in_.fail_at(begin, fmt::format("state {} was given before", entry.name));
    }
    in_.expect(':', "':'");
    size_t type_begin = in_.position();
    entry.type = type(entry.layout);
    check_dims(entry.type.shape, type_begin);
    if (in_.accept_word("role")) entry.role = one_of("a state's role", StateRole::kStatistic, state_role_name);
    if (in_.accept_word("index")) entry.index = static_cast<int32_t>(bounded("an index", INT32_MAX));
    if (in_.accept_word("of")) entry.param = name();
    if (in_.accept_word("update")) {
      const size_t at = in_.position();
      const bool rows = in_.accept_word("rows");
      if (!rows && !in_.accept_word("none"))
        in_.fail_at(at, "expected none or rows: of other states nothing is written");
      entry.update = rows ? Update::kRows : Update::kNone;
    }
    if (in_.accept_word("slots")) entry.slots = static_cast<int32_t>(bounded("slots", INT32_MAX));
    while (in_.accept_word("holds")) entry.placements.push_back(placement());
    if (in_.accept_word("initial")) entry.initial = number();
    located(begin, [&] {
      // Those of a part are in the whole, whose size the graphs' mesh says: the verifier looks at them.
      if (entry.layout.cuts.empty())
        for (const Placement& placement : entry.placements) check_placement(placement, entry.type.shape);
      program.add_state(std::move(entry));
    });
  }

  void check_dims(const Shape& shape, size_t begin) {
    if (!can_be_stored(shape))
      in_.fail_at(begin, fmt::format("{}: dims must be positive and elements at most 2^56", to_string(shape)));
  }

  Placement placement() {
    std::string param = name();
    const size_t shape_begin = in_.position();
    const Shape shape(int_list());
    check_dims(shape, shape_begin);
    Placement result = place_rows(std::move(param), shape);
    if (in_.accept_word("at")) result.offset = bounded("an offset", INT64_MAX);
    if (!in_.accept_word("as")) return result;
    result.dims.clear();
    do {
      const size_t begin = in_.position();
      const std::vector<int64_t> list = int_list();
      if (list.size() != 5) in_.fail_at(begin, "expected [origin,extent,run,stride,run stride]");
      result.dims.push_back({list[0], list[1], list[2], list[3], list[4]});
    } while (in_.accept(','));
    return result;
  }

  int64_t bounded(const char* what, int64_t most) {
    const size_t begin = in_.position();
    const int64_t value = in_.integer(what);
    if (value < 0 || value > most)
      in_.fail_at(begin, fmt::format("found {}, expected {} of 0 to {}", value, what, most));
    return value;
  }

  text::Reader in_;
};

}  // namespace

Graph parse_graph(std::string_view text, const std::string& where) { return Parser(text, where).whole_graph(); }
Program parse_program(std::string_view text, const std::string& where) { return Parser(text, where).whole_program(); }

}  // namespace octet
