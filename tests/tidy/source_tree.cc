#include "source_tree.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

namespace tutti::tidy {
namespace {

namespace fs = std::filesystem;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Replaces comments and the contents of string and character literals by spaces, so that braces and words in them are
// not taken for code.
class Blanker {
 public:
  explicit Blanker(std::string text) : text_(std::move(text)) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (starts("//")) {
        blank_until("\n", Keep::kEnd);
      } else if (starts("/*")) {
        blank_until("*/", Keep::kNothing);
      } else if (text_[at_] == '"' && at_ > 0 && text_[at_ - 1] == 'R') {
        blank_raw_string();
      } else if (text_[at_] == '"' || (text_[at_] == '\'' && !in_number())) {
        blank_quoted(text_[at_]);
      } else {
        ++at_;
      }
    }
    return std::move(text_);
  }

 private:
  enum class Keep { kEnd, kNothing };

  bool starts(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }

  void blank() {
    if (text_[at_] != '\n') text_[at_] = ' ';
    ++at_;
  }

  void blank_until(std::string_view end, Keep keep) {
    blank();
    while (at_ < text_.size() && !starts(end)) blank();
    for (std::size_t i = 0; i < end.size() && at_ < text_.size() && keep == Keep::kNothing; ++i) blank();
  }

  void blank_raw_string() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string::npos) {
      ++at_;
      return;
    }
    const std::string end = ")" + text_.substr(at_ + 1, open - at_ - 1) + "\"";
    ++at_;
    while (at_ < text_.size() && !starts(end)) blank();
    for (std::size_t i = 0; i + 1 < end.size() && at_ < text_.size(); ++i) blank();
    ++at_;  // the closing quote stays
  }

  void blank_quoted(char quote) {
    ++at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n') {
      if (text_[at_] == '\\') blank();
      if (at_ < text_.size()) blank();
    }
    ++at_;
  }

  // Whether the apostrophe at the current position separates digits, as in 1'000.
  bool in_number() const {
    std::size_t begin = at_;
    while (begin > 0 && (is_word(text_[begin - 1]) || text_[begin - 1] == '\'')) --begin;
    return begin < at_ && std::isdigit(static_cast<unsigned char>(text_[begin])) != 0;
  }

  std::string text_;
  std::size_t at_ = 0;
};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Parses an include. `code` is the line without comments and literals. If the line is not an include, the result has
// no name.
Include parse_include(const std::string& line, const std::string& code) {
  const std::size_t hash = code.find_first_not_of(" \t");
  if (hash == std::string::npos || code[hash] != '#') return {};
  const std::size_t word = code.find_first_not_of(" \t", hash + 1);
  if (word == std::string::npos || code.compare(word, 7, "include") != 0) return {};
  const std::size_t open = line.find_first_of("\"<", word);
  if (open == std::string::npos) return {};
  const std::size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
  if (close == std::string::npos) return {};
  return {.name = line.substr(open + 1, close - open - 1), .target = {}, .quoted = line[open] == '"', .line = 0};
}

// Finds the included file as the compiler does: in the folder of the file, then in the include folders of the
// project. The folder tests is an include folder only for tests.
std::string resolve(const SourceTree& tree, const std::string& from, const Include& include) {
  std::vector<std::string> folders = {"include"};
  if (include.quoted) folders = {folder_of(from), "include", "src", ""};
  if (include.quoted && from.starts_with("tests/")) folders.emplace_back("tests");
  for (const std::string& folder : folders) {
    std::string path = (fs::path(folder) / include.name).lexically_normal().generic_string();
    if (tree.contains(path)) return path;
  }
  return {};
}

bool skip_folder(const fs::path& path, const fs::path& root) {
  const std::string name = path.filename().string();
  if (name == ".ci") return false;
  return name.starts_with('.') || (path.parent_path() == root && (name.starts_with("build") || name == "shared"));
}

}  // namespace

bool is_header(std::string_view path) { return path.ends_with(".h"); }
bool is_cxx(std::string_view path) { return is_header(path) || path.ends_with(".cc"); }

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

SourceTree read_tree(const fs::path& root) {
  SourceTree tree;
  for (auto entry = fs::recursive_directory_iterator(root); entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && skip_folder(entry->path(), root)) entry.disable_recursion_pending();
    if (!entry->is_regular_file() || entry->is_symlink()) continue;
    if (entry->path().filename() == ".git") continue;  // in a git worktree, .git is a file with a path
    std::ifstream stream(entry->path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    if (text.find('\0') != std::string::npos) continue;  // a binary file
    const std::string path = entry->path().lexically_relative(root).generic_string();
    SourceFile& file = tree[path];
    file.lines = split_lines(text);
    if (is_cxx(path)) file.code = split_lines(Blanker(text).run());
  }
  for (auto& [path, file] : tree) {
    for (std::size_t i = 0; i < file.code.size(); ++i) {
      Include include = parse_include(file.lines[i], file.code[i]);
      if (include.name.empty()) continue;
      include.line = i + 1;
      include.target = resolve(tree, path, include);
      file.includes.push_back(std::move(include));
    }
  }
  return tree;
}

}  // namespace tutti::tidy
