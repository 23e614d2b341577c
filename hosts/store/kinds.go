// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"net/netip"
	"strings"
)

// kind holds what differs from table to table.
type kind[T Object] struct {
	table string
	one   string // the word for one object, in errors
	parts int    // how many names a key has
	// blank returns an object in which only the fields of the key are set.
	blank func(names []string) (T, error)
}

func networks() kind[Network] {
	return kind[Network]{"networks", "network", 1, func(names []string) (Network, error) {
		return Network{Name: names[0]}, nil
	}}
}

func nodes() kind[Node] {
	return kind[Node]{"nodes", "node", 1, func(names []string) (Node, error) {
		return Node{ID: names[0]}, nil
	}}
}

func blocks() kind[Block] {
	return kind[Block]{"blocks", "block", 2, func(names []string) (Block, error) {
		prefix, err := unescape(names[1])
		return Block{Network: names[0], Prefix: prefix}, err
	}}
}

func endpoints() kind[Entry] {
	return kind[Entry]{"endpoints", "endpoint", 3, func(names []string) (Entry, error) {
		return Entry{Network: names[0], Node: names[1], ID: names[2]}, nil
	}}
}

// unescape parses a prefix that is written as in a block's key: 10.1.2.0-24.
func unescape(name string) (netip.Prefix, error) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return netip.Prefix{}, fmt.Errorf("%w: %q is not ADDRESS-BITS", ErrName, name)
	}
	p, err := netip.ParsePrefix(name[:i] + "/" + name[i+1:])
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%w: %w", ErrName, err)
	}
	return p, nil
}

// maxKey is the length of the longest key in bytes. With a suffix it is still a valid file name
// on every system.
const maxKey = 200

// names splits a key, and refuses one that no object of this kind can have.
func (k kind[T]) names(key string) ([]string, error) {
	names := strings.Split(key, "/")
	if len(names) != k.parts {
		return nil, fmt.Errorf("%w: it needs %d parts between slashes", ErrName, k.parts)
	}
	if len(key) > maxKey {
		return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrName, maxKey)
	}
	for _, name := range names {
		if !isName(name) {
			return nil, fmt.Errorf("%w: %q is not made of letters, digits and _.-: only, or begins with . or -", ErrName, name)
		}
	}
	return names, nil
}

func isName(name string) bool {
	for i := range len(name) {
		if !inName(name[i]) {
			return false
		}
	}
	return name != "" && name[0] != '.' && name[0] != '-'
}

func inName(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c == '_' || c == '.' || c == '-' || c == ':'
}
