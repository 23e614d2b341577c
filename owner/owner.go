// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner derives the owner key of an attachment, a hash of fixed length of (network,
// container id, interface). Every object of the attachment has this key. With it, DEL and GC
// find links, sets and files without any state. The table in docs/ownership.md says where each
// kind of object has the key.
package owner

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Len is the length of a Key. 15 characters hold 75 bits, and with a final NUL they fit into
// an nftables ifname key of 16 bytes.
const Len = 15

// aliasPrefix comes before the owner key in the ifalias of our links.
const aliasPrefix = "patchbay:"

// Key is the owner key of an object: 15 characters from a-z and 2-7.
type Key string

// Of returns the owner key of an attachment.
func Of(network, containerID, ifName string) Key {
	sum := sha256.Sum256([]byte(network + "\x00" + containerID + "\x00" + ifName))
	enc := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return Key(enc.EncodeToString(sum[:10])[:Len])
}

// LinkName derives an interface name from the key: prefix and hex digits of a hash, cut to 15
// bytes. If another owner has the name, call it again with the next number; each number gives
// another name.
func (k Key) LinkName(prefix string, number byte) string {
	sum := sha256.Sum256(append([]byte(prefix+string(k)), number))
	digits := min(8, 15-len(prefix))
	return prefix + hex.EncodeToString(sum[:])[:digits]
}

// Alias returns the ifalias of a link that belongs to k.
func (k Key) Alias() string { return aliasPrefix + string(k) }

// FromAlias returns the key in an ifalias. ok is false if the alias is not one of ours.
func FromAlias(alias string) (k Key, ok bool) {
	s, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok || !Key(s).Valid() {
		return "", false
	}
	return Key(s), true
}

// Valid reports whether k has the form of a key. A valid key is safe as a file name.
func (k Key) Valid() bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(k) == Len
}
