// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxComment is the longest comment, in bytes: the kernel takes 253, but a
// longer one than this cannot be loaded again with `nft -f` (NFTNL_UDATA_COMMENT_MAXLEN).
const MaxComment = 128

// ownerLen is owner.Len: the length of the key a comment of ours begins with.
const ownerLen = 15

// Hex is binary data that is written as hexadecimal digits in JSON.
type Hex []byte

// MarshalText writes lower case digits.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads digits of either case.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	*h = b
	return err
}

// Element is one element of a set or map of ours, in the kernel's own bytes,
// so that a record can put it back without knowing what it means. KeyEnd is
// the other end of a range, inclusive, in network-level sets. Data is empty in
// sets. Comment is for people and for finding the owner.
type Element struct {
	Set     string `json:"set"`
	Key     Hex    `json:"key"`
	KeyEnd  Hex    `json:"keyEnd,omitempty"`
	Data    Hex    `json:"data,omitempty"`
	Comment string `json:"comment,omitempty"`

	leaving bool // it has a timeout, which only a removal gives it
}

// same says whether two elements are the same in all the kernel keeps.
func (e Element) same(o Element) bool {
	return e.sameKey(o) && bytes.Equal(e.Data, o.Data) && e.Comment == o.Comment
}

func (e Element) sameKey(o Element) bool {
	return e.Set == o.Set && bytes.Equal(e.Key, o.Key) && bytes.Equal(e.KeyEnd, o.KeyEnd)
}

// ofAnother says whether have, found under e's key, belongs to somebody else:
// by the owner in both comments, else by the data.
func (e Element) ofAnother(have Element) bool {
	mine, ok1 := OwnerOf(e.Comment)
	theirs, ok2 := OwnerOf(have.Comment)
	if ok1 && ok2 {
		return mine != theirs
	}
	return len(e.Data) > 0 && !bytes.Equal(e.Data, have.Data)
}

// Comment returns the comment of an attachment's elements:
// "<owner> <network>/<container>/<interface>", cut to MaxComment bytes.
func Comment(owner, network, containerID, ifName string) string {
	return cleanComment(owner + " " + network + "/" + containerID + "/" + ifName)
}

// OwnerOf returns the owner key a comment begins with; ok is false for a
// comment of anybody else or of a network.
func OwnerOf(comment string) (owner string, ok bool) {
	owner, _, ok = strings.Cut(comment, " ")
	return owner, ok && len(owner) == ownerLen && strings.Trim(owner, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// cleanComment replaces what nft cannot read back and cuts at a rune.
func cleanComment(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == 0x7f || r == utf8.RuneError {
			return '_'
		}
		return r
	}, s)
	if len(s) <= MaxComment {
		return s
	}
	cut := MaxComment
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
