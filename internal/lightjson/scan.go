// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"
)

// scanner reads a valid document.
type scanner struct {
	data []byte
	at   int
}

// next passes over space, and returns the next character.
func (s *scanner) next() byte {
	for {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return c
		}
	}
}

// each calls do for each item up to the end of an object or a list.
func (s *scanner) each(end byte, do func() bool) bool {
	for s.at++; s.next() != end; {
		if s.data[s.at] == ',' {
			s.at++
		}
		if !do() {
			return false
		}
	}
	s.at++
	return true
}

// skip passes over a value, and returns its text.
func (s *scanner) skip() []byte {
	s.next()
	start := s.at
	for depth := 0; ; {
		switch s.data[s.at] {
		case '"':
			s.skipString()
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':', ' ', '\t', '\r', '\n':
			s.at++
		default:
			s.plain()
		}
		if depth == 0 {
			return s.data[start:s.at]
		}
	}
}

func (s *scanner) skipString() {
	for s.at++; s.data[s.at] != '"'; s.at++ {
		if s.data[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

// plain returns a number, true, false or null.
func (s *scanner) plain() string {
	start := s.at
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return string(s.data[start:s.at])
		}
		s.at++
	}
	return string(s.data[start:])
}

// text returns a string. It returns false if the value is no string.
func (s *scanner) text() (text string, ok bool) {
	if s.next() != '"' {
		return "", false
	}
	start := s.at
	s.skipString()
	raw := s.data[start:s.at]
	if slices.ContainsFunc(raw, func(c byte) bool { return c == '\\' || c >= utf8.RuneSelf }) {
		err := json.Unmarshal(raw, &text)
		return text, err == nil
	}
	return string(raw[1 : len(raw)-1]), true
}

// isText reports whether a type is written as a string of JSON. json.Number is not.
func isText(t reflect.Type) bool {
	return t.Kind() == reflect.String && t != reflect.TypeFor[json.Number]()
}

// scalar decodes a string, a boolean or an integer.
func (s *scanner) scalar(to reflect.Value) bool {
	if s.next() == '"' {
		text, ok := s.text()
		if ok = ok && isText(to.Type()); ok {
			to.SetString(text)
		}
		return ok
	}
	text := s.plain()
	switch {
	case to.Kind() == reflect.Bool && (text == "true" || text == "false"):
		to.SetBool(text == "true")
		return true
	case to.CanInt():
		n, err := strconv.ParseInt(text, 10, to.Type().Bits())
		if err == nil {
			to.SetInt(n)
		}
		return err == nil
	case to.CanUint():
		n, err := strconv.ParseUint(text, 10, to.Type().Bits())
		if err == nil {
			to.SetUint(n)
		}
		return err == nil
	}
	return false
}
