#!/usr/bin/env python3
"""Tests outline.py's use of tags with small code examples; Universal Ctags is responsible for the tags themselves."""
import pathlib
import tempfile
import unittest

import outline


def outline_of(code):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "code.h"
        path.write_text(code)
        return outline.read([path])[str(path)]


class Functions(unittest.TestCase):
    def test_those_defined_and_pure_virtual_ones_are_counted(self):
        found = outline_of("""
            TORCH_LIBRARY(a, m) { m.def("b"); }
            __global__ void __launch_bounds__(256) kernel(float* x) {}
            void declared(int);
            bool operator==(A a, B b) {
              const auto lambda = [](int x) { return x; };
              return true;
            }
            struct A { virtual void pure(int, int) = 0; virtual void g(); };
            """).functions
        self.assertEqual([(f.name, f.lines, len(f.parameters), f.is_pure) for f in found],
                         [("kernel", 1, 1, False), ("operator==", 4, 2, False), ("pure", 1, 2, True)])

    def test_positional_bools_are_those_by_value(self):
        code = "void f(bool a, const bool b = true, bool& c, std::optional<bool> d, bool, int e, std::map<int, bool> g) {}"
        function = outline_of(code).functions[0]
        self.assertEqual(len(function.parameters), 7)
        self.assertEqual([text[:6] for text in function.positional_bools], ["bool a", "const ", "bool"])

    def test_registered_functions_and_overrides_are_told_apart(self):
        found = outline_of("""
            class Reader : public json_sax<Json> { bool boolean(bool) override { return fail(); } };
            class OurStore : public Store {
              Bytes pop(bool block) override;
              Bytes pop(bool block, int more);
            };
            Bytes OurStore::pop(bool block) { return {}; }
            Bytes OurStore::pop(bool block, int more) { return {}; }
            void registered(bool a) {}
            void our_own(bool a) {}
            struct OurClass { void run(bool a) {} };
            TORCH_LIBRARY_IMPL(a, CPU, m) { m.impl("b", &registered); }
            TORCH_LIBRARY_FRAGMENT(a, m) { m.class_<OurClass>("C").def("run", &OurClass::run); }
            """)
        self.assertEqual([(f.scoped, f.is_override, found.is_registered(f)) for f in found.functions],
                         [("Reader::boolean", True, False), ("OurStore::pop", True, False), ("OurStore::pop", False, False),
                          ("registered", False, True), ("our_own", False, False), ("OurClass::run", False, True)])


class Declarations(unittest.TestCase):
    def test_each_kind_is_found_where_users_see_it(self):
        found = outline_of("""
            namespace a::b {
            class Forward;
            using Alias = int;
            inline constexpr int kConstant = 1;
            enum class Enum { kOne };
            NARROWCAST_EXPORT int function(int);
            class NARROWCAST_EXPORT Class final : public Base {
             public:
              explicit Class(int);
              Class(const Class&) = delete;
              ~Class();
              int inherited() override;
              TORCH_ARG(int, option) = 1;
              int data;
             private:
              int hidden();
              struct Inner { int hidden_too(); };
            };
            }
            """)
        self.assertEqual([(d.kind, d.name) for d in found.declarations],
                         [("alias", "Alias"), ("constant", "kConstant"), ("enum", "Enum"), ("function", "function"),
                          ("class", "Class"), ("function", "Class"), ("function", "option")])
        self.assertEqual(found.classes, {"a::b::Enum", "a::b::Class", "a::b::Class::Inner"})
        self.assertLessEqual({"a::b::function", "a::b::Class::hidden", "a::b::kConstant"}, found.names)

    def test_a_comment_is_above_on_the_line_or_shared(self):
        found = outline_of("""
            // Of a.
            template <class T>
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
