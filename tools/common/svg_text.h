// The few shapes that the tool's drawings are made of, as SVG text. A value; one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace tutti::tool {

struct SvgFont {
  double size = 12;
  std::string_view colour = "#1f2a30";
  bool bold = false;
  std::string_view anchor = "middle";  // "start", "end"
};

class SvgText {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
            std::string_view dashes = "");
  void arrow(double x1, double y1, double x2, double y2, std::string_view colour);  // from left to right
  void path(const std::string& way, std::string_view colour, double width, double opacity = 1);
  void box(double x, double y, double width, double height, std::string_view fill, std::string_view line);
  void chip(double x, double y, double radius, const std::string& words, std::string_view colour);  // a filled circle
  void text(double x, double y, std::string_view words, const SvgFont& font);

  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

// Fit for the text of an element: what XML would take for its own is replaced, and control characters are blanks.
std::string escaped(std::string_view text);

// At most so many letters, the last two of them dots where some are left out.
std::string cut(const std::string& text, std::size_t letters);

std::string svg_document(double width, double height, const std::string& body);

}  // namespace tutti::tool
