// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the SDK for CNI plugins.
//
// A plugin is a value of type Plugin. Its functions take a Request and return a Result. They do
// not read the environment, print, exit or change the namespace of their thread. Main runs a
// Plugin as a program, and Builtin runs it inside another program. Both write the same bytes, and
// both refuse an invalid call before any work.
//
//	func main() {
//		os.Exit(plugin.Main(&plugin.Plugin{Name: "mine", Add: add, Del: del}))
//	}
//
// If a Plugin has no function for a verb, a call of that verb succeeds and does nothing.
package plugin

import (
	"context"

	"github.com/patchbay-net/patchbay/spec"
)

// Kind says where in a chain a plugin belongs.
type Kind int

// These are the kinds of plugins.
const (
	Interface Kind = iota // makes the container's interface; first in a chain
	Chained               // changes what the plugins before it made
	IPAM                  // gives addresses to another plugin
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"interface", "chained", "ipam"}[k] }

// Plugin is one CNI plugin.
type Plugin struct {
	Name       string // the CNI type, such as "host-local"
	Kind       Kind
	About      string // description in one line
	MinVersion string // oldest version of the specification; empty means 0.1.0

	// Layer2 means that without the key ipam the result has no addresses. Versions before 0.3.0
	// cannot express such a result. For them the SDK refuses the ADD before it calls the plugin.
	Layer2 bool

	// Capabilities lists the keys of runtimeConfig that the plugin understands.
	Capabilities []string

	// Conf returns a pointer to a configuration with default values. The SDK decodes the request's
	// configuration into it once (Request.Conf). The field tables in the documentation are generated
	// from its type.
	Conf func() any

	// NoPrev has the errors for a request without a previous result.
	NoPrev NoPrev

	// Delegates means that ADD and DEL call the configuration's IPAM plugin. CHECK, GC and STATUS
	// then go to the IPAM plugin too; the SDK does that.
	Delegates bool

	// Validate returns the errors that Add would find in the configuration before it changes
	// anything. It leaves out the errors of Conf, and it looks only at the configuration. STATUS
	// calls Validate first. `patchbay network validate` calls it for any version of the
	// specification. Validate may be nil.
	Validate func(*Request) error

	// Warnings describes settings that are surely mistakes, although Validate, Add and the reference
	// accept them. `patchbay network validate` prints them. Warnings may be nil.
	Warnings func(*Request) []string

	// Samples returns answers that the ADD of an IPAM plugin could give, if the configuration alone
	// determines them. Together the answers use each range of the configuration. The plugin that
	// calls the IPAM plugin validates them. Samples may be nil.
	Samples func(*Request) []*spec.Result

	// VersionsFor returns the members of Versions that the configuration in a VERSION request
	// allows. If VersionsFor is nil, the configuration allows all of them.
	VersionsFor func(context.Context, *Session, *spec.Call) []string

	// Reserved is called within an ADD of a whole chain in one process (`type: patchbay`), as soon as
	// the addresses are known and before the container's link exists. Add is called later. If a later
	// step fails, Del is called. Reserved may be nil.
	Reserved func(context.Context, *Request, *spec.Result) error

	// Helper does work in a separate process, for example under another security label. HelperArgs
	// returns the arguments of that process. Helper may be nil.
	Helper func(args []string) error

	// Marked means that a link on the host or in the container has the owner in its alias as long as an attachment of the
	// plugin exists. So `patchbay gc` can tell that nothing is left of an attachment whose record cannot be read.
	Marked bool

	// Files lists the files that an attachment of the plugin has until its DEL, unless the configuration names another
	// directory. Each is a pattern below the run directory of CNI's plugins (/run/cni): the first * stands for the container's
	// id, the second for the name of its interface. So a GC finds the files without a record.
	Files []string

	Add    func(context.Context, *Request) (*spec.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request) error
}

// NoPrev has the reference's error texts for an ADD and a CHECK without a previous result. If a
// text is empty, the verb works without a previous result.
type NoPrev struct{ Add, Check string }

// Versions lists the versions that the plugin supports, oldest first.
func (p *Plugin) Versions() []string {
	if p.MinVersion == "" {
		return spec.Versions()
	}
	return spec.VersionsFrom(p.MinVersion)
}
