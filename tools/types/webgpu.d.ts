// WebGPU's constants, which TypeScript's own types leave out.

declare const GPUBufferUsage: {
  readonly MAP_READ: number;
  readonly MAP_WRITE: number;
  readonly COPY_SRC: number;
  readonly COPY_DST: number;
  readonly STORAGE: number;
  readonly UNIFORM: number;
};
declare const GPUMapMode: { readonly READ: number; readonly WRITE: number };
declare const GPUShaderStage: { readonly COMPUTE: number };
