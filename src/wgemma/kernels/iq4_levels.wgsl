// −127 −104 −83 −65, −49 −35 −22 −10, 1 13 25 38, 53 69 89 113: the levels of IQ4_NL and IQ4_XS.

const LEVELS = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
