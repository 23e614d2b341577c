// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the SDK for CNI plugins.
//
// A plugin is a value: a Plugin with functions that take one Request and return one Result.
// It never reads the environment, prints, exits or changes its thread's namespace. Main
// runs a Plugin as a program, Builtin runs it inside another program. Both refuse the same
// calls before any work, and write the same bytes.
//
//	func main() {
//		os.Exit(plugin.Main(&plugin.Plugin{Name: "mine", Add: add, Del: del}))
//	}
//
// A call succeeds and does nothing where the Plugin has no function for its verb.
package plugin

import (
	"context"

	"github.com/patchbay-net/patchbay/spec"
)

// Kind is a plugin's place in a chain.
type Kind int

// The kinds of plugins.
const (
	Interface Kind = iota // makes the container's interface; first in a chain
	Chained               // adjusts what the plugins before it made
	IPAM                  // gives addresses to another plugin
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"interface", "chained", "ipam"}[k] }

// Plugin is one CNI plugin.
type Plugin struct {
	Name       string // the CNI type, such as "host-local"
	Kind       Kind
	About      string // one line for people
	MinVersion string // oldest version of the specification; empty means 0.1.0

	// Layer2 means that without ipam the result has no addresses. Versions before 0.3.0
	// cannot express that: the SDK refuses such an ADD before it calls the plugin.
	Layer2 bool

	// Capabilities are the runtimeConfig keys the plugin understands.
	Capabilities []string

	// Conf returns a pointer to the configuration with its defaults, which the SDK decodes
	// once (Request.Conf). The field reference is generated from it.
	Conf func() any

	// NoPrev are the errors of a request without a previous result.
	NoPrev NoPrev

	// Delegates means that ADD and DEL call the IPAM plugin of the configuration. The SDK
	// passes CHECK, GC and STATUS on to it.
	Delegates bool

	// Validate, which may be nil, returns the errors, besides those of Conf, that Add itself
	// would return for the configuration before it changes anything. It reads the
	// configuration alone. STATUS calls it first, for any plugin, and `patchbay network
	// validate` for any version of the specification.
	Validate func(*Request) error

	// Warnings, which may be nil, returns settings that are valid for Validate and Add, as
	// for the reference, but cannot be intended. `patchbay network validate` warns of them.
	Warnings func(*Request) []string

	// Samples, which may be nil, are answers that an IPAM plugin's Add could give, as far
	// as the configuration alone decides: together they use each of its ranges. The plugin
	// that calls it for addresses validates them.
	Samples func(*Request) []*spec.Result

	// VersionsFor, which may be nil, reduces Versions to those that the configuration in a
	// VERSION request, if any, allows. nil keeps all of them.
	VersionsFor func(context.Context, *Session, *spec.Call) []string

	// Helper, which may be nil, is work that a plugin does in a process of its own, started
	// with HelperArgs: under another security label, say.
	Helper func(args []string) error

	Add    func(context.Context, *Request) (*spec.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request) error
}

// NoPrev has the texts, which are the reference's, by verb. An empty one: the verb works
// without a previous result.
type NoPrev struct{ Add, Check string }

// Versions lists what the plugin supports, oldest first.
func (p *Plugin) Versions() []string {
	if p.MinVersion == "" {
		return spec.Versions()
	}
	return spec.VersionsFrom(p.MinVersion)
}
