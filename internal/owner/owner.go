// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner derives the mark that everything of one attachment carries: a
// hash of fixed length of (network, container id, interface), from which DEL
// and GC find links, sets and files without any state. docs/ownership.md is
// the table of what carries it where.
package owner

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Len is the length of a Key: what fits an nftables ifname key of 16 bytes
// with its NUL, 75 bits.
const Len = 15

// aliasPrefix stands before the owner in the ifalias of a link of ours.
const aliasPrefix = "patchbay:"

// Key is the owner of an object: 15 characters a-z2-7.
type Key string

// Of returns the owner key of an attachment.
func Of(network, containerID, ifName string) Key {
	sum := digest(network, containerID, ifName)
	enc := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return Key(enc.EncodeToString(sum[:10])[:Len])
}

// LinkName derives an interface name from the key: prefix and hex digits of a
// hash, cut to 15 bytes. A number other than 0 gives the next candidate when a
// name is taken by somebody else.
func (k Key) LinkName(prefix string, number byte) string {
	sum := sha256.Sum256(append([]byte(prefix+string(k)), number))
	digits := min(8, 15-len(prefix))
	return prefix + hex.EncodeToString(sum[:])[:digits]
}

// Alias is the ifalias of a link that belongs to k.
func (k Key) Alias() string { return aliasPrefix + string(k) }

// FromAlias returns the key in an ifalias; ok is false for anybody else's.
func FromAlias(alias string) (k Key, ok bool) {
	s, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok || !Key(s).Valid() {
		return "", false
	}
	return Key(s), true
}

// Valid reports whether k has the form of a key, and so may become a file name.
func (k Key) Valid() bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(k) == Len
}

func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}
