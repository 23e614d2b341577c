// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package jsonat finds the line and column of JSON values, for error messages.
package jsonat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Position returns the line and column of a byte. Both start at 1. A column counts bytes.
func Position(data []byte, offset int64) (line, column int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	line = bytes.Count(before, []byte{'\n'}) + 1
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// Syntax describes a syntax error of encoding/json with its position, such as "6:3: unexpected
// "]" (trailing comma?)". For any other error, ok is false.
func Syntax(data []byte, err error) (text string, ok bool) {
	var bad *json.SyntaxError
	if !errors.As(err, &bad) {
		return "", false
	}
	if strings.Contains(bad.Error(), "unexpected end") || bad.Offset < 1 || bad.Offset > int64(len(data)) {
		line, column := Position(data, int64(len(bytes.TrimRight(data, " \t\r\n"))))
		return fmt.Sprintf("%d:%d: unexpected end of the file (a bracket or quote is not closed?)", line, column), true
	}
	line, column := Position(data, bad.Offset-1)
	return fmt.Sprintf("%d:%d: unexpected %s%s", line, column, character(data, bad.Offset-1), guess(data, bad)), true
}

func character(data []byte, at int64) string {
	if data[at] == '\n' {
		return "end of the line"
	}
	for _, r := range string(data[at:]) {
		return strconv.Quote(string(r))
	}
	return ""
}

// guess returns the usual cause of a syntax error.
func guess(data []byte, bad *json.SyntaxError) string {
	c, before := data[bad.Offset-1], bytes.TrimRight(data[:bad.Offset-1], " \t\r\n")
	switch {
	case (c == ']' || c == '}') && bytes.HasSuffix(before, []byte{','}):
		return " (trailing comma?)"
	case strings.Contains(bad.Error(), "after object key:value pair"), strings.Contains(bad.Error(), "after array element"):
		return " (missing comma?)"
	case c == '/' || c == '#':
		return " (JSON has no comments)"
	case c == '\'':
		return " (strings are in double quotes)"
	}
	return ""
}

// Node is a value and its position.
type Node struct {
	Offset  int64
	Token   json.Token // the token of a scalar, or the opening delimiter of an object or list
	Members []Member   // of an object only
	Items   []*Node    // of a list only
}

// Member is a key of an object with its value.
type Member struct {
	Key    string
	Offset int64
	Value  *Node
}

// Parse reads a JSON document.
func Parse(data []byte) (*Node, error) {
	p := parser{data, json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	return p.value()
}

type parser struct {
	data []byte
	dec  *json.Decoder
}

// next returns the offset of the next token.
func (p *parser) next() int64 {
	at := p.dec.InputOffset()
	rest := p.data[at:]
	return at + int64(len(rest)-len(bytes.TrimLeft(rest, " \t\r\n,:")))
}

func (p *parser) value() (n *Node, err error) {
	n = &Node{Offset: p.next()}
	if n.Token, err = p.dec.Token(); err != nil {
		return nil, err
	}
	switch n.Token {
	case json.Delim('{'):
		for err == nil && p.dec.More() {
			err = p.member(n)
		}
	case json.Delim('['):
		for err == nil && p.dec.More() {
			var item *Node
			item, err = p.value()
			n.Items = append(n.Items, item)
		}
	default:
		return n, nil
	}
	if err == nil {
		_, err = p.dec.Token() // the closing delimiter
	}
	return n, err
}

func (p *parser) member(n *Node) error {
	m := Member{Offset: p.next()}
	key, err := p.dec.Token()
	if err != nil {
		return err
	}
	m.Key, _ = key.(string)
	m.Value, err = p.value()
	n.Members = append(n.Members, m)
	return err
}

// Get returns the value of a key. If there is none, Get returns nil. Like encoding/json, Get
// ignores the case of the key.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	for _, m := range n.Members {
		if strings.EqualFold(m.Key, key) {
			return m.Value
		}
	}
	return nil
}

// String returns a scalar as it is in the file. For an object or list, it returns the kind.
func (n *Node) String() string {
	switch v := n.Token.(type) {
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return fmt.Sprintf("%q", v)
	case nil:
		return "null"
	}
	return fmt.Sprint(n.Token)
}

// Nearest returns the known word that differs from word only by a typing error. Nearest
// returns "" if there is none.
func Nearest(word string, known []string) (nearest string) {
	least := max(2, len(word)/3) + 1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			nearest, least = k, d
		}
	}
	return nearest
}

// distance counts the letters that were inserted, omitted, changed or swapped.
func distance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		last := row
		row = make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before = last
	}
	return row[len(b)]
}
