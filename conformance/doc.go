// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance describes as data how every CNI plugin must behave. contract/ has a
// short script for each rule, and subjects/ has a description of each plugin. Run tests the
// executables of a directory against these scripts; the executables may be written in any
// language. plugin/plugintest tests a plugin.Plugin against the same scripts, in process and
// as a program.
//
// A script is a txtar file in the language of github.com/rogpeppe/go-internal/testscript, with
// these commands:
//
//	cni VERB [key=value...]   call the plugin; "!" expects an error object.
//	    version=V   cniVersion (default: the version the suite runs at)
//	    at=second   the second attachment: another container, another namespace
//	    conf=KIND   bare (only type, name, ipam.type and Subject.Keep), wrong (every
//	                other key of the wrong JSON type), garbage (no JSON)
//	    name=N, id=ID, ifname=IF, args=A   override the call's values
//	    netns=none|gone|host   no namespace, a path without one, the plugin's own
//	    prev=none   leave the previous result out
//	    may=fail    an error object is accepted too
//	    valid=LIST  GC: valid attachments ("first,second", "none"); without
//	                it the request has no list
//	error CODE [REGEXP]       the last error object has this code ("any" for any)
//	result                    the last ADD's result follows the specification
//	                          and matches the kernel
//	break                     damage what ADD made, as the subject describes
//	netns delete [at]         delete the namespace of an attachment
//	clean                     the node is as it was at the start
//	stands                    the node has more than at the start
//
// The conditions are [since:V] (the suite runs at V or newer), [kind:K], and [stateless],
// [unchecked], [again] (see Subject).
package conformance

import "embed"

//go:embed contract/*.txtar
var contract embed.FS

//go:embed subjects/*.json
var subjects embed.FS
