// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import "strings"

// isDomain reports whether a domain from a server consists of labels as RFC 1035 defines them,
// or with the "_" of Active Directory. Runtimes write it to resolv.conf, where a newline in
// it would start a line of the server's choice.
func isDomain(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, foreign) {
			return false
		}
	}
	return true
}

// foreign reports whether no label may contain a rune.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// domains returns the valid ones of a list.
func domains(list []string) (out []string) {
	for _, s := range list {
		if isDomain(s) {
			out = append(out, s)
		}
	}
	return out
}
