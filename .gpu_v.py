import sys, os, time
sys.path.insert(0,"tests/bench")
import torch, matmul as B
from dataclasses import replace
from tilejit.kernels.plan import Problem, choose
from product_kernels import bias_gelu, bias_gelu_residual, bias_gelu_rounded_residual as rr
shapes=[tuple(map(int,x.split("x"))) for x in sys.argv[1].split(",")]
majors=[x=="NK" for x in sys.argv[2].split(",")]
for shape in shapes:
  for nk in majors:
    m,n,k=shape
    sets=B.operands(*shape, nk, torch.bfloat16)
    bias=torch.randn(n,device="cuda"); residual=B.matrix(m,n,torch.bfloat16)
    cfg=choose(Problem(m,n,k,epilogue=True,ahead=True,across=(False,not nk)),132)
    o=lambda c=None,**x: B.ours(torch.bfloat16,c,**x)
    e=dict(epilogue=bias_gelu_residual,tiles=(bias,residual)); g=dict(epilogue=bias_gelu,tiles=(bias,)); r=dict(epilogue=rr,tiles=(bias,residual))
    c={"plain":o(),"bgr":o(cfg,**e),"round":o(cfg,**r),"bg":o(cfg,**g)}
    a,b,out=sets[0]
    ref=torch.empty_like(out)
    B.ours(torch.bfloat16,replace(cfg,late=0),**e)(a,b,ref); out.fill_(float("nan")); c["bgr"](a,b,out)
    same=torch.equal(ref,out)
    s=B.measured(c,sets,2.0*m*n*k,int(os.environ.get("ROUNDS","5")),False)
    print(*(f"{x} {os.environ[x]}" for x in sorted(os.environ) if x.startswith("V_")),"x".join(map(str,shape)),"NK" if nk else "KN",same,*("%s %.4f"%(x,s["plain"]/s[x]) for x in c),flush=True)
    del sets,residual,ref
