#!/usr/bin/env python3
"""Tests outline.py with code made up, which has what a reader of tokens may stumble over."""
import unittest

import outline


def functions(code):
    return [(function.name, function.lines, len(function.parameters)) for function in outline.read(code).functions]


def declared(code):
    return [(declaration.kind, declaration.name) for declaration in outline.read(code).declarations
            if declaration.is_public and not declaration.is_trivial]


class Functions(unittest.TestCase):
    def test_bodies_are_found_behind_whatever_follows_the_parameters(self):
        self.assertEqual(functions("""
            int a() const noexcept(true) { return 1; }
            auto b(int x) -> std::vector<int> {
              if (x > 1) { for (;;) {} }
              return {};
            }
            C::C(int x) : Base<int>{x}, a_(x), b_{1} {}
            C::~C() { switch (1) { default: {} } }
            bool C::operator()(int, int) const { return true; }
            bool operator==(A a, B b) { return true; }
            """), [("a", 1, 0), ("b", 4, 1), ("C", 1, 1), ("~C", 1, 0), ("operator()", 1, 2), ("operator==", 1, 2)])

    def test_templates_attributes_and_macros_before_it_are_no_part_of_a_function(self):
        self.assertEqual(functions("""
            template <class T, int n = (1 > 0)>
              requires std::is_same_v<T, int> && (n > 0)
            [[nodiscard]] T a(T x, std::map<int, T> y) {
            }
            template <>
            void b<4>() {}
            __global__ void __launch_bounds__(256) c(float* x) {}
            MAKE_JSON(A, a, b)
            void d() {}
            """), [("a", 2, 2), ("b", 1, 0), ("c", 1, 1), ("d", 1, 0)])

    def test_values_lambdas_and_what_only_looks_like_code_are_none(self):
        self.assertEqual(functions(r'''
            constexpr int a[] = {1, 2};
            const auto b = [](int x) { return x; };
            std::function<void(int)> c{nullptr};
            void (*d)(int) = nullptr;
            // void e() {}
            const char* f = "void g() {";
            const char* h = R"x(void i() { )" )x";
            #define J(x) \
              void k() {
            const char l = '{'; const int m = 1'000;
            void n(const O& o = {}) {
              const auto p = [&] {
                return 1;
              };
            }
            '''), [("n", 5, 1)])

    def test_a_registration_is_known_by_its_name(self):
        self.assertTrue(outline.read("TORCH_LIBRARY(a, m) { m.def(); }").functions[0].is_registration)

    def test_positional_bools_are_those_by_value(self):
        code = "void f(bool a, const bool b = true, bool& c, std::optional<bool> d, bool, int e, std::map<int, bool> g) {}"
        function = outline.read(code).functions[0]
        self.assertEqual(len(function.parameters), 7)
        self.assertEqual(function.positional_bools, [["bool", "a"], ["bool", "b", "=", "true"], ["bool"]])

    def test_pure_virtual_functions_are_told(self):
        found = outline.read("struct A { virtual void f(int, int) = 0; virtual void g(); };").functions
        self.assertEqual([(function.name, function.is_pure) for function in found], [("f", True)])

    def test_brackets_that_do_not_match_are_an_error(self):
        for code in ("void f() { (} }", "void f() {", "int a); int b;", "} int a;", "int a[(3];", "namespace a {"):
            with self.subTest(code), self.assertRaises(ValueError):
                outline.read(code)


class Exemptions(unittest.TestCase):
    def test_operators_and_callbacks_have_signatures_that_others_chose(self):
        found = outline.read("""
            class Reader : public json_sax<Json> { bool boolean(bool) override { return fail(); } };
            void registered(bool a) {}
            void our_own(bool a) {}  // m.impl("b", &our_own);
            TORCH_LIBRARY_IMPL(a, CPU, m) { m.impl("b", &registered); }
            """)
        self.assertEqual({function.name: found.exemption(function) for function in found.functions[:3]},
                         {"boolean": "nlohmann's SAX", "registered": "operators' schemas", "our_own": None})

    def test_a_name_alone_exempts_nothing(self):
        found = outline.read("void boolean(bool) {}")
        self.assertIsNone(found.exemption(found.functions[0]))


class Declarations(unittest.TestCase):
    def test_each_kind_is_found_where_users_see_it(self):
        self.assertEqual(declared("""
            namespace a::b {
            class Forward;
            using Alias = int;
            using c::d;
            inline constexpr int kConstant = 1;
            enum class Enum { kOne };
            template <class T> concept Concept = requires(T t) { t.x(); };
            EXPORT int function(int);
            class EXPORT Class final : public Base {
             public:
              explicit Class(int);
              Class(const Class&) = delete;
              ~Class();
              int inherited() override;
              TORCH_ARG(int, option) = 1;
              std::function<int(int)> data;
             private:
              int hidden();
            };
            struct Struct { int seen() const { return 1; } };
            }
            """), [("alias", "Alias"), ("constant", "kConstant"), ("enum", "Enum"), ("constant", "Concept"),
                   ("function", "function"), ("class", "Class"), ("function", "Class"), ("macro", "TORCH_ARG(int,option)"),
                   ("struct", "Struct"), ("function", "seen")])

    def test_names_are_those_of_all_that_is_declared_with_their_scopes(self):
        self.assertEqual(outline.read("""
            namespace EXPORT a::b {
            class Class {
              struct OnlyNamed;
              int data_[3] = {};
              bool operator()(int) const { int local; return true; }
            };
            namespace { void function(); }
            }
            inline namespace c { enum Enum { kOne }; }
            """).names, {"a::b::Class", "a::b::Class::OnlyNamed", "a::b::Class::data_", "a::b::Class::operator()",
                         "a::b::function", "c::Enum"})

    def test_a_comment_is_above_on_the_line_or_shared(self):
        found = outline.read("""
            // Of a.
            int a();
            int b();
            int c();  // Of c.

            int d();  // Of d,
            int e();

            int f();
            """)
        told = [(d.name, found.has_comment(d), found.shares_comment(d)) for d in found.declarations]
        self.assertEqual(told, [("a", True, True), ("b", False, True), ("c", True, True), ("d", True, True),
                                ("e", False, True), ("f", False, False)])


if __name__ == "__main__":
    unittest.main()
