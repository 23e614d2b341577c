// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner derives the mark of every object of one attachment: a hash of fixed length
// of (network, container id, interface), by which DEL and GC find links, sets and files
// without any state. The table in docs/ownership.md says which object carries it where.
package owner

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Len is the length of a Key: 75 bits, which fit an nftables ifname key of 16 bytes with
// its NUL.
const Len = 15

// aliasPrefix precedes the owner in the ifalias of our links.
const aliasPrefix = "patchbay:"

// Key is the owner of an object: 15 characters a-z2-7.
type Key string

// Of returns the owner key of an attachment.
func Of(network, containerID, ifName string) Key {
	sum := sha256.Sum256([]byte(network + "\x00" + containerID + "\x00" + ifName))
	enc := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return Key(enc.EncodeToString(sum[:10])[:Len])
}

// LinkName derives an interface name from the key: prefix and hex digits of a hash, cut to
// 15 bytes. A number other than 0 gives the next candidate when another owner has the
// name.
func (k Key) LinkName(prefix string, number byte) string {
	sum := sha256.Sum256(append([]byte(prefix+string(k)), number))
	digits := min(8, 15-len(prefix))
	return prefix + hex.EncodeToString(sum[:])[:digits]
}

// Alias is the ifalias of a link that belongs to k.
func (k Key) Alias() string { return aliasPrefix + string(k) }

// FromAlias returns the key in an ifalias; ok is false if it is not one of ours.
func FromAlias(alias string) (k Key, ok bool) {
	s, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok || !Key(s).Valid() {
		return "", false
	}
	return Key(s), true
}

// Valid reports whether k has the form of a key, and so is safe as a file name.
func (k Key) Valid() bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(k) == Len
}
