// Measures the length of functions by matching braces. There is no parser, but the result is correct for code in this
// project's format. A function is a pair of braces that opens at namespace or class level after a parameter list.
// Everything inside, including lambdas, belongs to it.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "rules.h"

namespace tutti::tidy {
namespace {

constexpr std::size_t kMaxFunctionLines = 70;

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Removes "template <...>" and "[[...]]" from the front.
std::string_view without_prefixes(std::string_view head) {
  for (;;) {
    head = trim(head);
    if (head.starts_with("[[")) {
      const std::size_t end = head.find("]]");
      if (end == std::string_view::npos) return head;
      head.remove_prefix(end + 2);
    } else if (head.starts_with("template")) {
      std::size_t at = head.find('<');
      if (at == std::string_view::npos) return head;
      for (int depth = 0; at < head.size(); ++at) {
        if (head[at] == '<') ++depth;
        if (head[at] == '>' && --depth == 0) break;
      }
      head.remove_prefix(std::min(at + 1, head.size()));
    } else {
      return head;
    }
  }
}

bool starts_with_word(std::string_view head, std::string_view word) {
  return head.starts_with(word) && (head.size() == word.size() || !is_word(head[word.size()]));
}

bool opens_scope(std::string_view head) {
  if (starts_with_word(head, "inline")) head = trim(head.substr(6));
  if (starts_with_word(head, "extern")) return head.find('(') == std::string_view::npos;
  for (std::string_view word : {"namespace", "class", "struct", "union"}) {
    if (starts_with_word(head, word)) return true;
  }
  return false;
}

// Whether the initialiser list of a constructor has begun: there is a single ':' after the parameter list.
bool in_initialisers(std::string_view head) {
  int depth = 0;
  bool parameters_seen = false;
  for (std::size_t i = 0; i < head.size(); ++i) {
    if (head[i] == '(') ++depth;
    if (head[i] == ')' && --depth == 0) parameters_seen = true;
    if (head[i] != ':' || depth != 0 || !parameters_seen) continue;
    const bool doubled = (i > 0 && head[i - 1] == ':') || (i + 1 < head.size() && head[i + 1] == ':');
    if (!doubled) return true;
  }
  return false;
}

// The type of a pair of braces: a namespace or class, a function, or anything else.
enum class Braces { kScope, kFunction, kOther };

// The type of a '{' at namespace or class level. `head` is the text between the previous statement and the brace.
Braces classify(std::string_view head) {
  head = without_prefixes(head);
  if (opens_scope(head)) return Braces::kScope;
  if (head.find('(') == std::string_view::npos) return Braces::kOther;  // an enumeration, or an initialiser in braces
  if (in_initialisers(head) && (is_word(head.back()) || head.back() == '>')) return Braces::kOther;  // member_{...}
  return Braces::kFunction;
}

// The name of a function, for example "RingPlan::build" for "Result<Plan> RingPlan::build(int ranks) const".
std::string function_name(std::string_view head) {
  head = without_prefixes(head);
  head = trim(head.substr(0, head.find('(')));
  std::size_t begin = head.size();
  while (begin > 0 && (is_word(head[begin - 1]) || head[begin - 1] == ':' || head[begin - 1] == '~')) --begin;
  return begin == head.size() ? std::string(head) : std::string(head.substr(begin));
}

// Reads the code of one file character by character, and reports functions that are too long.
class Scanner {
 public:
  Scanner(const std::string& path, const SourceFile& file, std::vector<Finding>& findings)
      : path_(path), file_(file), findings_(findings) {}

  void run() {
    bool continued = false;
    for (std::size_t i = 0; i < file_.code.size(); ++i) {
      const std::string_view line = file_.code[i];
      const bool directive = continued || trim(line).starts_with('#');
      continued = directive && line.ends_with('\\');
      if (directive) continue;
      line_ = i + 1;
      for (char c : line) take(c);
      take('\n');
    }
    if (!open_.empty() || unmatched_) {
      findings_.push_back({"function-length", path_, line_, "braces do not match, so no function can be measured"});
    }
  }

 private:
  struct Open {
    Braces braces;
    std::size_t line;  // first line of the text before the brace
    int parentheses;   // number of open parentheses around it
    std::string name;
  };

  bool outside_functions() const { return open_.empty() || open_.back().braces == Braces::kScope; }

  void take(char c) {
    if (c == '{') return open();
    if (c == '}') return close();
    if (!outside_functions()) return;
    if (c == '(') ++parentheses_;
    if (c == ')') --parentheses_;
    if (c == ';' && parentheses_ == 0) return start_head();
    if (head_.empty() && std::isspace(static_cast<unsigned char>(c)) != 0) return;
    if (head_.empty()) head_line_ = line_;
    head_ += c;
    const std::string_view label = trim(head_);
    if (label == "public:" || label == "private:" || label == "protected:") start_head();
  }

  void open() {
    Open opened{Braces::kOther, line_, parentheses_, {}};
    if (outside_functions() && parentheses_ == 0) {
      opened.braces = classify(head_);
      opened.line = head_.empty() ? line_ : head_line_;
      opened.name = function_name(head_);
    }
    open_.push_back(std::move(opened));
    if (outside_functions()) start_head();
  }

  void close() {
    if (open_.empty()) {
      unmatched_ = true;
      return;
    }
    const Open closed = std::move(open_.back());
    open_.pop_back();
    parentheses_ = closed.parentheses;
    const std::size_t lines = line_ - closed.line + 1;
    if (closed.braces == Braces::kFunction && lines > kMaxFunctionLines) {
      findings_.push_back({"function-length", path_, closed.line,
                           closed.name + " has " + std::to_string(lines) + " lines; " +
                               std::to_string(kMaxFunctionLines) + " are allowed"});
    }
    if (!outside_functions()) return;
    if (closed.braces == Braces::kOther) {
      head_ += '}';  // an initialiser in braces: the statement continues
    } else {
      start_head();
    }
  }

  void start_head() { head_.clear(); }

  const std::string& path_;
  const SourceFile& file_;
  std::vector<Finding>& findings_;
  std::vector<Open> open_;
  std::string head_;  // text since the last statement, outside of functions
  std::size_t head_line_ = 0;
  std::size_t line_ = 0;
  int parentheses_ = 0;
  bool unmatched_ = false;
};

}  // namespace

void check_functions(const SourceTree& tree, std::vector<Finding>& findings) {
  for (const auto& [path, file] : tree) {
    if (is_cxx(path)) Scanner(path, file, findings).run();
  }
}

}  // namespace tutti::tidy
