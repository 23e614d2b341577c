// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

// operation is something that the suite asks the runtime to do.
type operation struct {
	do     string            // add, del, check, gc or status
	orders map[string]string // what recorders do meanwhile, by "TYPE VERB"
	second bool              // for a second container, attached as "net1"
	fails  bool              // it must fail
	may    bool              // it may fail, too
	kills  string            // the runtime is killed as soon as this call runs: "TYPE VERB"
	before func(*stage) error
}

// scenario is a network and what the suite does with it.
type scenario struct {
	name       string
	version    string // cniVersion; empty is the newest of the runtime
	keys       string // others of the network's configuration, such as `"disableGC": true, `
	plugins    []string
	dropIn     string // the plugin of a file in the network's own directory
	operations []operation
	hangs      bool // it needs to know how long the runtime waits for a plugin
}

// The objects of the plugins in most networks. Their fields have values that a careless copy changes. The first two declare capabilities.
var (
	first = `{"type": "recorder-1", "capabilities": {"mac": true, "ips": false},
    "fields": {"text": "<a> & \u00e9", "list": [1, {"a": null}, [], {}], "number": 2.50, "large": 9007199254740991, "no": false}}`
	second = `{"type": "recorder-2", "capabilities": {"portMappings": true}, "ipam": {"type": "recorder-3"}, "empty": ""}`
	third  = `{"type": "recorder-3"}`
	three  = []string{first, second, third}
)

// olderVersion has another format of results than the newest.
const olderVersion = "0.4.0"

// changedText is in the configuration of the first plugin after it was changed.
const changedText = "changed "

// attach makes ADD misbehave, and then detaches.
func attach(order string, fails bool) []operation {
	return []operation{{do: "add", orders: map[string]string{"recorder-2 ADD": order}, fails: fails}, {do: "del"}}
}

// scenarios are in the order in which they are played.
var scenarios = []scenario{
	{name: "life", plugins: three, operations: []operation{{do: "add"}, {do: "check"}, {do: "del"}, {do: "del", may: true}}},
	{name: "netns-deleted", plugins: three, operations: []operation{{do: "add"}, {do: "del", before: (*stage).deleteNetNS}}},

	{name: "add-fails", plugins: three, operations: attach(orderFail, true)},
	{name: "garbage", plugins: three, operations: attach(orderGarbage, true)},
	{name: "empty", plugins: three, operations: attach(orderEmpty, true)},
	{name: "garbled", plugins: three, operations: attach(orderGarbled, true)},
	{name: "signal", plugins: three, operations: attach(orderDie, true)},
	{name: "noise", plugins: three, operations: attach(orderNoise, false)},
	{name: "hang", plugins: three, operations: attach(orderHang, true), hangs: true},
	{name: "missing", plugins: []string{first, `{"type": "recorder-absent"}`, third}, operations: []operation{{do: "add", fails: true}}},
	{name: "killed", plugins: three, operations: []operation{
		{do: "add", orders: map[string]string{"recorder-2 ADD": orderHang}, kills: "recorder-2 ADD", may: true}, {do: "del"}, {do: "add"}, {do: "del"},
	}},

	{name: "del-fails", plugins: three, operations: []operation{
		{do: "add"}, {do: "del", orders: map[string]string{"recorder-2 DEL": orderFail}, fails: true}, {do: "del"},
	}},
	{name: "check-fails", plugins: three, operations: []operation{
		{do: "add"}, {do: "check", orders: map[string]string{"recorder-2 CHECK": orderFail}, fails: true}, {do: "del"},
	}},
	{name: "check-disabled", keys: `"disableCheck": true, `, plugins: three, operations: []operation{{do: "add"}, {do: "check"}, {do: "del"}}},

	{name: "drop-ins", plugins: []string{first, second}, dropIn: third, operations: []operation{{do: "add"}, {do: "del"}}},
	{name: "inlined", keys: `"loadOnlyInlinedPlugins": true, `, plugins: []string{first, second}, dropIn: third, operations: []operation{{do: "add"}, {do: "del"}}},

	{name: "versions", version: olderVersion, keys: `"cniVersions": ["0.4.0", "99.0.0", "1.1.0", "1.0.0"], `, plugins: three, operations: []operation{{do: "add"}, {do: "del"}}},
	{name: "older", version: olderVersion, plugins: three, operations: []operation{{do: "add"}, {do: "check"}, {do: "del"}}},
	{name: "oldest", version: "0.3.1", plugins: three, operations: []operation{
		{do: "add"}, {do: "check", may: true}, {do: "gc", may: true}, {do: "status", may: true}, {do: "del"},
	}},
	{name: "older-result", plugins: three, operations: []operation{
		{do: "add", orders: map[string]string{"recorder-1 ADD": orderOlder}, may: true}, {do: "del"},
	}},

	{name: "gc", plugins: three, operations: []operation{{do: "add"}, {do: "gc"}, {do: "del"}}},
	{name: "gc-fails", plugins: three, operations: []operation{{do: "gc", orders: map[string]string{"recorder-1 GC": orderFail}, fails: true}}},
	{name: "gc-disabled", keys: `"disableGC": true, `, plugins: three, operations: []operation{{do: "gc", may: true}}},
	{name: "status", plugins: three, operations: []operation{
		{do: "status"}, {do: "status", orders: map[string]string{"recorder-2 STATUS": orderFail}, fails: true},
	}},
	{name: "reload", plugins: three, operations: []operation{
		{do: "add"}, {do: "add", second: true, before: (*stage).changeConf}, {do: "del"}, {do: "del", second: true},
	}},
}
