// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import "github.com/patchbay-net/patchbay/conformance"

// rule judges the recording of a scenario.
type rule struct {
	conformance.Rule
	scenario string
	op       int    // index of the operation that it judges: if the runtime does not have it, the rule does not apply
	since    string // version in which the specification has it
	needs    string // one of Options.Without
	outcome  bool   // it judges how operations end; others need that they end as they should
	check    func(*recording) error
}

// The sentences that several rules cite.
const (
	adding    = `SPEC 1.1.0, section 3, "Adding an attachment": `
	deleting  = `SPEC 1.1.0, section 3, "Deleting an attachment": `
	checking  = `SPEC 1.1.0, section 3, "Checking an attachment": `
	lifecycle = `SPEC 1.1.0, section 3, "Lifecycle & Ordering": `
	deriving  = `SPEC 1.1.0, section 3, "Deriving request configuration from plugin configuration": `
	gcing     = `SPEC 1.1.0, section 3, "Garbage-collecting a network": `

	halts = `"If the plugin returns an error, halt execution and return the error to the caller."`
)

func says(name string, level conformance.Level, text string, sources ...string) conformance.Rule {
	return conformance.Rule{Name: name, Level: level, Says: text, Sources: sources}
}

const must, should, users = conformance.Must, conformance.Should, conformance.Users

// Rules lists the rules.
func Rules() (out []conformance.Rule) {
	for i := range rules {
		out = append(out, rules[i].Rule)
	}
	return out
}

// rules are sorted by name.
var rules = []rule{
	{scenario: "add-fails", outcome: true, check: addFails, Rule: says("add-fails", must,
		"ADD fails if a plugin fails, and the caller learns the plugin's message.", adding+halts)},
	{scenario: "add-fails", op: 1, check: delAfterADD, Rule: says("add-fails-del", must,
		"After an ADD that failed, DEL calls every plugin of the list: by the runtime itself, or when it is asked to detach.",
		lifecycle+`"A delete must still be executed even if the add fails."`, "cni#775, cni#797: what the plugins before had made stayed")},
	{scenario: "add-fails", check: notAfterFailure, Rule: says("add-fails-halts", must,
		"After a plugin whose ADD failed, no further ADD is called.", adding+halts)},
	{scenario: "life", check: addOrder, Rule: says("add-order", must,
		"ADD calls each plugin once, in the order of the list.",
		adding+`"For every configuration defined in the plugins key of the network configuration"`)},
	{scenario: "life", check: addPrev, Rule: says("add-prev", must,
		"In an ADD, the first plugin gets no prevResult, and each other plugin gets the result of the one before.",
		adding+`"If this is the first plugin in the list, no previous result is provided"; "For all additional plugins, the previous result is the result of the previous plugins."`)},
	{scenario: "life", check: addResult, Rule: says("add-result", users,
		"What the runtime reports of an ADD is the result of the last plugin.",
		`SPEC 0.4.0, "Network Configuration Lists": "plugins SHOULD echo the contents of the prevResult field to their stdout to allow subsequent plugins (and the runtime) to receive the result"`)},
	{scenario: "life", needs: "args", check: passesArgs, Rule: says("args", must,
		"Every plugin gets the arguments of the attachment in CNI_ARGS, in ADD, CHECK and DEL.",
		`SPEC 1.1.0, section 3, "Attachment Parameters": "Generic Arguments: Extra arguments, in the form of key-value string pairs, that are relevant to a specific attachment. During execution, always set as the CNI_ARGS parameter."`)},
	{scenario: "life", op: 2, check: cacheRemoved, Rule: says("cache-removed", users,
		"After a DEL, no file of the runtime names the container: in CACHE_DIR, or below /var/lib.",
		`SPEC 0.4.0, DEL: "If the runtime cached the Result of a previous ADD response for a given container, it must delete that cached response on a successful DEL for that container."`)},
	{scenario: "life", needs: "capabilities", check: runtimeConfig, Rule: says("capabilities", must,
		"runtimeConfig has the capabilities that the plugin declares and the runtime has, and no others.",
		`SPEC 1.1.0, section 3, "Deriving runtimeConfig": "any capability supported by the plugin configuration and provided by the runtime should be inserted in the runtimeConfig"`,
		deriving+`"runtimeConfig: the runtime must insert an object consisting of the union of capabilities provided by the plugin and requested by the runtime"`)},
	{scenario: "check-disabled", op: 1, outcome: true, check: checkDisabled, Rule: says("check-disabled", must,
		"If the network sets disableCheck, the runtime calls no CHECK and reports success.",
		`SPEC 1.1.0, section 1, disableCheck: "If disableCheck is true, runtimes must not call CHECK for this network configuration list."`,
		checking+`"If the network configuration defines disableCheck, then always return success to the caller."`)},
	{scenario: "check-fails", op: 1, outcome: true, check: checkFails, Rule: says("check-fails", must,
		"CHECK fails if a plugin fails, and the caller learns the plugin's message.", checking+halts)},
	{scenario: "life", op: 1, check: checkOrder, Rule: says("check-order", must,
		"CHECK calls each plugin once, in the order of the list.",
		checking+`"For every plugin defined in the plugins key of the network configuration"; "Checking is similar to add with two exceptions"`)},
	{scenario: "life", op: 1, check: checkPrev, Rule: says("check-prev", must,
		"In a CHECK, every plugin gets the final result of the ADD as prevResult.",
		checking+`"the previous result provided is always the final result of the add operation."`)},
	{scenario: "life", check: noCapabilities, Rule: says("config-capabilities", must,
		"The key capabilities is not passed on.", deriving+`"capabilities: must not be set"`)},
	{scenario: "life", check: nameAndVersion, Rule: says("config-name", must,
		"Every plugin gets the network's name, and the version that the runtime chose.",
		deriving+`"The following fields are always to be inserted into the request configuration by the runtime"; "cniVersion: the protocol version selected by the runtime"; "name: taken from the name field of the network configuration"`)},
	{scenario: "life", check: unchanged, Rule: says("config-unchanged", must,
		"Every plugin gets the other fields of its object as they are in the network's file.",
		`SPEC 1.1.0, section 1, "Plugin configuration objects": "Plugin configuration objects may contain additional fields beyond the ones defined here. The runtime MUST pass through these fields, unchanged, to the invoked plugin"`)},
	{scenario: "life", op: 3, check: delAgain, Rule: says("del-again", users,
		"A second DEL of the same attachment succeeds: a caller that was interrupted repeats it.",
		lifecycle+`"delete may be followed by additional deletes."`, "kubernetes#86944: callers repeat a DEL until it succeeds")},
	{scenario: "reload", op: 2, check: delSameConf, Rule: says("del-config", should,
		"DEL uses the configuration of the ADD, although the network's file was changed since.",
		lifecycle+`"The network configuration should not change between add and delete."`, "cni#660, cni#661: libcni caches it for this")},
	{scenario: "del-fails", op: 1, outcome: true, check: delFails, Rule: says("del-fails", must,
		"DEL fails if a plugin fails, and the caller learns the plugin's message.", deleting+halts)},
	{scenario: "del-fails", op: 2, check: delRepeated, Rule: says("del-fails-again", must,
		"After a DEL that failed, another DEL calls every plugin that has not succeeded yet, with the same prevResult.",
		lifecycle+`"The container runtime must ensure that add is eventually followed by a corresponding delete."`,
		deleting+`"The previous result provided is always the final result of the add operation."`)},
	{scenario: "del-fails", op: 1, check: delHalts, Rule: says("del-fails-halts", must,
		"After a plugin whose DEL failed, no further DEL is called.", deleting+halts)},
	{scenario: "netns-deleted", op: 1, needs: "netns", outcome: true, check: delWithoutNetNS, Rule: says("del-netns-deleted", must,
		"DEL calls every plugin, with an empty or the old CNI_NETNS, also if the namespace was deleted before.",
		lifecycle+`"The container runtime must ensure that add is eventually followed by a corresponding delete."`,
		`SPEC 1.1.0, section 2, DEL: CNI_NETNS is an optional parameter`)},
	{scenario: "life", op: 2, check: delOrder, Rule: says("del-order", must,
		"DEL calls each plugin in the reverse order of the list, and may do all of it again.",
		deleting+`"The list of plugins is executed in reverse order"`, lifecycle+`"delete may be followed by additional deletes."`)},
	{scenario: "life", op: 2, check: delPrev, Rule: says("del-prev", must,
		"In a DEL, every plugin gets the final result of the ADD as prevResult.",
		deleting+`"The previous result provided is always the final result of the add operation."`)},
	{scenario: "life", check: noDescriptors, Rule: says("descriptors", users,
		"A plugin inherits no open files besides standard input, output and error.",
		"containerd#654: a descriptor of the daemon was passed down to every hook; a plugin that starts a daemon keeps such files open for ever")},
	{scenario: "drop-ins", since: "1.1.0", op: 1, check: dropIns, Rule: says("drop-ins", should,
		"The plugins of files in the directory with the network's name are appended to its list.",
		`SPEC main of 2026, section 1, loadOnlyInlinedPlugins: "Any valid plugin configuration objects aggregated from other sources must be appended to the final list of plugins for that network name."`)},
	{scenario: "inlined", since: "1.1.0", check: noDropIns, Rule: says("drop-ins-off", should,
		"If the network sets loadOnlyInlinedPlugins, these files are ignored.",
		`SPEC main of 2026, section 1, loadOnlyInlinedPlugins: "If set to true, indicates that valid plugin configuration objects aggregated from sources other than the main network configuration will be ignored."`)},
	{scenario: "life", check: environment, Rule: says("environment", must,
		"Every ADD, CHECK and DEL has CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_PATH, with the same values for one attachment.",
		`SPEC 1.1.0, section 3, "Attachment Parameters"; section 2, ADD: "Required environment parameters"`,
		checking+`"The runtime must use the same attachment parameters as it did for the add operation."`)},
	{scenario: "garbled", outcome: true, check: failsAndHalts, Rule: says("error-garbage", must,
		"ADD fails if a plugin fails without an error object.", `SPEC 1.1.0, section 2, Errors: "A plugin must exit with a return code of 0 on success, and non-zero on failure."`)},
	{scenario: "gc", since: "1.1.0", op: 1, check: gcAll, Rule: says("gc-all", must,
		"GC calls each plugin of the list once, with CNI_PATH.",
		gcing+`"For every plugin defined in the plugins key of the network configuration"`, `SPEC 1.1.0, section 2, GC: "Required environment parameters"`)},
	{scenario: "gc-disabled", since: "1.1.0", check: gcDisabled, Rule: says("gc-disabled", must,
		"If the network sets disableGC, the runtime calls no GC.",
		`SPEC 1.1.0, section 1, disableGC: "If disableGC is true, runtimes must not call GC for this network configuration list."`)},
	{scenario: "gc-fails", since: "1.1.0", outcome: true, check: gcFails, Rule: says("gc-fails", must,
		"If the GC of a plugin fails, the runtime goes on with the next plugin, and then fails.",
		gcing+`"If the plugin returns an error, continue with execution, returning all errors to the caller."`)},
	{scenario: "gc", since: "1.1.0", op: 1, check: gcList, Rule: says("gc-list", must,
		"GC has a list of valid attachments. An attachment that it lacks got a DEL before.",
		`SPEC 1.1.0, section 2, GC: "cni.dev/valid-attachments (array of objects): The list of still valid attachments to this network"; "The runtime MUST NOT use GC as a substitute for DEL."`)},
	{scenario: "killed", op: 1, outcome: true, check: runtimeKilled, Rule: says("killed", users,
		"If the runtime is killed during an ADD, the DEL that follows calls every plugin that had been called, and another ADD works.",
		lifecycle+`"The only exception is in the event of catastrophic failure, such as node loss."`, "kubernetes#34278, danm#171: addresses leaked with each restart")},
	{scenario: "life", check: oneAtATime, Rule: says("one-at-a-time", must,
		"The plugins of a list run one after the other.",
		lifecycle+`"The container runtime must not invoke parallel operations for the same container"`)},
	{scenario: "hang", outcome: true, check: failsAndHalts, Rule: says("plugin-hangs", users,
		"If a plugin does not end, ADD fails after the time that the runtime gives it. (For a runtime with --timeout.)",
		"cni#567, kubernetes#65743, containerd#4666, cri-o#6984: a plugin that hung blocked the node")},
	{scenario: "signal", outcome: true, check: failsAndHalts, Rule: says("plugin-killed", must,
		"ADD fails if a signal ends a plugin.", `SPEC 1.1.0, section 2, Errors: "A plugin must exit with a return code of 0 on success, and non-zero on failure."`)},
	{scenario: "missing", outcome: true, check: failsAndHalts, Rule: says("plugin-missing", must,
		"ADD fails if a plugin is not installed.", adding+`"Look up the executable specified in the type field. If this does not exist, then this is an error."`)},
	{scenario: "reload", op: 1, outcome: true, check: reloads, Rule: says("reload", users,
		"An ADD after a change of the network's file uses the new configuration.",
		"cni#660, ocicni#31: a new configuration was used only after a restart")},
	{scenario: "empty", outcome: true, check: failsAndHalts, Rule: says("result-empty", users,
		"ADD fails if a plugin succeeds and prints nothing.", `SPEC 1.1.0, section 2, ADD: "If the CNI plugin is successful, it must output a result structure (see below) on standard out."`)},
	{scenario: "garbage", outcome: true, check: failsAndHalts, Rule: says("result-garbage", users,
		"ADD fails if a plugin succeeds and prints no JSON.", `SPEC 1.1.0, section 2, ADD: "If the CNI plugin is successful, it must output a result structure (see below) on standard out."`)},
	{scenario: "older-result", check: olderResult, Rule: says("result-older", users,
		"If a plugin answers in an older version, the next plugin gets its result in the version of the call, or ADD fails.",
		`SPEC 1.1.0, section 5, ADD Success: "cniVersion: The same version supplied on input"`, "cni#701: DEL of an older result failed for ever")},
	{scenario: "status", since: "1.1.0", outcome: true, check: status, Rule: says("status", users,
		"A runtime that is asked whether a network is ready asks each plugin by STATUS, and reports what fails.",
		`SPEC 1.1.0, section 2, STATUS: "STATUS is a way for a runtime to determine the readiness of a network plugin."`)},
	{scenario: "noise", outcome: true, check: noise, Rule: says("stderr", must,
		"ADD succeeds although a plugin writes much to standard error, which is no part of its result.",
		`SPEC 1.1.0, section 5, Error: "In addition, stderr can be used for unstructured output such as logs."`)},
	{scenario: "life", outcome: true, check: lives, Rule: says("succeeds", must,
		"ADD, CHECK and DEL succeed if all plugins succeed.",
		deleting+`"If all plugins return success, return success to the caller."`)},
	{scenario: "versions", since: "1.1.0", outcome: true, check: highest, Rule: says("version-highest", must,
		"The runtime chooses the highest version that it supports of those in cniVersion and cniVersions.",
		`SPEC 1.1.0, section 1, "Version considerations": "CNI runtimes MUST select the highest supported version from the set of network configuration versions given by the cniVersion and cniVersions fields."`)},
	{scenario: "older", outcome: true, check: older, Rule: says("version-older", must,
		"For a network of the version 0.4.0, plugins are called at this version, and prevResult has its format.",
		`SPEC 0.4.0, "Network Configuration Lists": "the runtime MUST replace the name and cniVersion fields in each individual network configuration in the list with the name and cniVersion field of the list itself"`)},
	{scenario: "oldest", check: onlyItsVerbs, Rule: says("version-verbs", users,
		"For a network of the version 0.3.1, plugins get no CHECK, GC or STATUS: its plugins do not have them.",
		`SPEC 0.4.0, "Released versions": "Introduce the CHECK command and passing prevResult on DEL"; GC and STATUS are new in 1.1.0`)},
}
